"""Which examples belong to which micro-batch: the same, whoever computes it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_keras.common.batch_plan import share_of
from hvd_elastic_keras.data.plan.partition import Partition


@st.composite
def partitions(draw: st.DrawFn) -> Partition:
    micro = draw(st.integers(1, 9))
    return Partition(
        num_examples=draw(st.integers(1, 300)),
        global_batch_size=micro * draw(st.integers(1, 9)),
        micro_batch_size=micro,
    )


def micro_batches(partition: Partition, step: int, size: int) -> dict[int, list[int]]:
    """The positions in each micro-batch of a step, computed by `size` workers."""
    result: dict[int, list[int]] = {}
    for rank in range(size):
        share = share_of(rank, size, partition.num_micro_batches)
        part = partition.step_share(step, share.first, share.last)
        bounds = part.start + part.offsets
        for i in range(len(bounds) - 1):
            index = part.first_micro_batch + i
            assert index not in result, "a micro-batch is computed once"
            result[index] = list(range(bounds[i], bounds[i + 1]))
        assert bounds[-1] == part.stop
        assert part.num_examples_of_step == partition.examples_of_step(step)
    return result


@given(partition=partitions(), data=st.data())
def test_every_example_of_an_epoch_occurs_once_even_if_the_workers_change_at_every_step(
    partition: Partition, data: st.DataObject
) -> None:
    seen: list[int] = []
    for step in range(partition.steps_per_epoch):
        size = data.draw(st.integers(1, 12))
        for _, positions in sorted(micro_batches(partition, step, size).items()):
            seen += positions
    assert seen == list(range(partition.num_examples))


@given(partition=partitions(), size=st.integers(2, 12))
def test_micro_batches_do_not_depend_on_the_number_of_workers(
    partition: Partition, size: int
) -> None:
    for step in range(partition.steps_per_epoch):
        assert micro_batches(partition, step, size) == micro_batches(partition, step, 1)


@given(partition=partitions())
def test_no_micro_batch_is_empty_and_only_the_last_of_a_step_may_be_smaller(
    partition: Partition,
) -> None:
    for step in range(partition.steps_per_epoch):
        sizes = [len(p) for _, p in sorted(micro_batches(partition, step, 1).items())]
        assert sum(sizes) == partition.examples_of_step(step)
        assert all(size == partition.micro_batch_size for size in sizes[:-1])
        assert 0 < sizes[-1] <= partition.micro_batch_size


@pytest.mark.parametrize(
    ("step", "micro_batches_of", "positions", "offsets"),
    [
        (0, (0, 4), (0, 8), [0, 2, 4, 6, 8]),
        (0, (1, 3), (2, 6), [0, 2, 4]),
        (1, (0, 2), (8, 12), [0, 2, 4]),
        (1, (2, 4), (12, 13), [0, 1]),
        (1, (3, 4), (13, 13), [0]),
    ],
)
def test_a_slice_of_13_examples_in_batches_of_4_times_2(
    step: int, micro_batches_of: tuple[int, int], positions: tuple[int, int], offsets: list[int]
) -> None:
    part = Partition(13, 8, 2).step_share(step, *micro_batches_of)
    assert (part.start, part.stop) == positions
    assert part.offsets.tolist() == offsets
    assert part.offsets.dtype == np.int32


@pytest.mark.parametrize("step", [-1, 2])
def test_a_step_outside_the_epoch_is_refused(step: int) -> None:
    with pytest.raises(ValueError, match=rf"step={step} was given, expected a value in \[0, 2\)"):
        Partition(13, 8, 2).step_share(step, 0, 1)
