"""A batch that grows with the workers: every example once per epoch, however they change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

tf = pytest.importorskip("tensorflow")

from hvd_elastic_keras.data.input.batch_pipeline import BatchPipeline
from hvd_elastic_keras.data.input.per_worker import PerWorkerInput
from hvd_elastic_keras.data.input.pipeline import Pipeline
from hvd_elastic_keras.data.plan.partition import step_share_of_worker_batch
from hvd_elastic_keras.data.sources.dataset_batches import DatasetBatches
from hvd_elastic_keras.data.sources.source import as_source

SIZE, BATCH, MICRO = 53, 6, 4
"""Nine worker batches, the last of five examples; each is cut into 4 and 2."""
Steps = list[tuple[int, bool]]
"""By step: the number of workers, and whether the step fails, so that it is taken again."""


def arrays(shuffle: bool) -> PerWorkerInput:
    source = as_source(np.arange(SIZE), seed=3, shuffle=shuffle, name="x")
    return PerWorkerInput(Pipeline(source, BATCH, MICRO))


def examples() -> PerWorkerInput:
    data = tf.data.Dataset.range(SIZE).map(lambda x: (x, x))
    source = as_source(data, seed=0, shuffle=False, name="x")
    return PerWorkerInput(Pipeline(source, BATCH, MICRO))


def batches(known: bool) -> PerWorkerInput:
    data = tf.data.Dataset.range(SIZE)
    if not known:
        data = data.filter(lambda x: x >= 0)
    source = DatasetBatches(data.batch(BATCH), "x")
    return PerWorkerInput(BatchPipeline(source, lambda size: MICRO))


INPUTS = {
    "arrays": lambda: arrays(shuffle=False),
    "shuffled arrays": lambda: arrays(shuffle=True),
    "examples": examples,
    "batches": lambda: batches(known=True),
    "batches of unknown number": lambda: batches(known=False),
}


def epoch_of(make: Any, steps: Steps) -> list[list[int]]:
    """The examples of each step, by workers that come and go as `steps` says, then by one."""
    workers = [make() for _ in range(max(size for size, _ in steps))]
    taken: list[list[int]] = []
    first, remaining = 0, list(steps)
    while True:
        size, fails = remaining.pop(0) if remaining else (1, False)
        # As after a change: everybody begins at the same batch, with iterators of a new round,
        # and with another rank.
        workers.append(workers.pop(0))
        parts = [next(workers[rank].of_worker(0, first, rank, size), None) for rank in range(size)]
        if parts[0] is None:
            assert parts == [None] * size
            return taken
        if fails:
            continue
        taken.append(check_step(parts))
        first += len(parts[0].worker_batches)


def check_step(parts: list[Any]) -> list[int]:
    """The examples of a step in the order of ranks; the parts fit together."""
    found: list[int] = []
    micro_batches = 0
    for part in parts:
        data = np.asarray(part.data[0] if isinstance(part.data, tuple) else part.data)
        assert len(data) == part.part.offsets[-1]
        assert part.part.num_examples_of_step == sum(len_of(p) for p in parts)
        if len(data):
            assert part.part.first_micro_batch == micro_batches
        micro_batches += len(part.part.offsets) - 1
        found += data.tolist()
    assert len({p.worker_batches for p in parts}) == 1
    return found


def len_of(part: Any) -> int:
    return int(part.part.offsets[-1])


@pytest.mark.parametrize("kind", INPUTS)
@settings(max_examples=10)
@given(steps=st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=8))
def test_every_example_occurs_once_however_the_workers_change(kind: str, steps: Steps) -> None:
    taken = epoch_of(INPUTS[kind], steps)
    flat = [example for step in taken for example in step]
    assert sorted(flat) == list(range(SIZE))
    if kind == "shuffled arrays":
        # The order is that of the epoch; how many take part decides only how it is cut.
        alone = epoch_of(INPUTS[kind], [(1, False)])
        assert flat == [example for step in alone for example in step] != list(range(SIZE))
    else:
        assert flat == list(range(SIZE))


@pytest.mark.parametrize("kind", INPUTS)
def test_a_round_takes_n_worker_batches_per_step_and_the_last_step_what_is_left(kind: str) -> None:
    inputs = [INPUTS[kind]() for _ in range(4)]
    rounds = [list(source.of_worker(0, 2, rank, 4)) for rank, source in enumerate(inputs)]
    assert [[len(b.worker_batches) for b in of_rank] for of_rank in rounds] == [[4, 3]] * 4
    assert [len_of(of_rank[1]) for of_rank in rounds] == [6, 6, 5, 0]
    assert {b.part.num_examples_of_step for of_rank in rounds for b in of_rank[1:]} == {17}
    inputs[0].confirm_end()
    assert inputs[0].worker_batches_left(0, 2) == 7


def test_the_number_of_batches_is_known_once_all_workers_have_read_them() -> None:
    source = batches(known=False)
    assert source.worker_batches_left(0, 0) is None
    assert len(list(source.of_worker(0, 0, 0, 2))) == 5
    assert source.worker_batches_left(1, 0) is None
    source.confirm_end()
    assert source.worker_batches_left(1, 0) == 9


def test_batches_are_not_read_again_when_a_step_is_taken_again() -> None:
    opened = []
    source = batches(known=True)
    inner = source._inner_input.source  # type: ignore[union-attr]
    open_before = inner.open

    def note(number: int, position: int) -> Any:
        opened.append((number, position))
        return open_before(number, position)

    inner.open = note
    for first, size in [(0, 3), (0, 2), (2, 3), (2, 1), (3, 4)]:
        assert len(next(source.of_worker(0, first, 0, size)).worker_batches) == size
    assert opened == []  # the one iterator was made before, for the first batch


@pytest.mark.parametrize(
    ("rank", "first", "offsets"), [(0, 0, [0, 4, 6]), (1, 2, [0, 4, 5]), (2, 4, [0, 3])]
)
def test_micro_batches_of_a_step_are_numbered_in_the_order_of_ranks(
    rank: int, first: int, offsets: list[int]
) -> None:
    part = step_share_of_worker_batch([6, 5, 3], rank, 4)
    assert (part.first_micro_batch, part.offsets.tolist()) == (first, offsets)
    assert (part.start, part.stop, part.num_examples_of_step) == (0, offsets[-1], 14)


def test_who_has_no_worker_batch_has_no_micro_batch() -> None:
    part = step_share_of_worker_batch([6, 5], 3, 4)
    assert (part.offsets.tolist(), part.num_examples_of_step) == ([0], 11)
