"""Data of unknown length: where they end, now and when a checkpoint was made."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest
import tensorflow as tf

from hvd_elastic_keras.common.batch_plan import Share
from hvd_elastic_keras.common.errors import DataError
from hvd_elastic_keras.data.examples import structure
from hvd_elastic_keras.data.input.batch_pipeline import BatchPipeline
from hvd_elastic_keras.data.input.fit_epochs import FitInput
from hvd_elastic_keras.data.input.interfaces import LocalBatch
from hvd_elastic_keras.data.input.per_worker import PerWorkerInput
from hvd_elastic_keras.data.plan.fit_passes import Passes
from hvd_elastic_keras.data.sources.dataset_batches import DatasetBatches
from hvd_elastic_keras.loop.end_of_data import LastBatch, announce_end, data_have_ended
from hvd_elastic_keras.loop.phase import PhaseRunner
from hvd_elastic_keras.observe.notices import notices
from hvd_elastic_keras.state.cursor import Cursor

ALL = Share(0, 1)


def lengths(*of_passes: int) -> tf.data.Dataset:
    """Returns a dataset with another length in each pass, which it does not tell."""
    left = iter(of_passes)

    def batches() -> Iterator[Any]:
        yield from ([n, n] for n in range(next(left)))

    spec = tf.TensorSpec([2], tf.int64)
    return tf.data.Dataset.from_generator(batches, output_signature=spec)


def pipeline_of(dataset: tf.data.Dataset) -> BatchPipeline:
    return BatchPipeline(DatasetBatches(dataset, "x"), lambda size: size)


def input_of(dataset: tf.data.Dataset) -> FitInput:
    return FitInput(pipeline_of(dataset), Passes(), lambda epoch: epoch)


def worker_batches_of(dataset: tf.data.Dataset) -> PerWorkerInput:
    return PerWorkerInput(pipeline_of(dataset))


def read_whole(source: Any, epoch: int) -> int:
    """Returns the number of batches, read two at a time where each worker takes its own."""
    if isinstance(source, PerWorkerInput):
        count = sum(len(b.worker_batches) for b in source.of_worker(epoch, 0, 0, 2))
    else:
        count = len(list(source.batches(epoch, ALL, 0)))
    if source.batches_per_pass is None:
        source.confirm_end()
    return count


KINDS: list[Callable[[Any], Any]] = [input_of, worker_batches_of]


@pytest.mark.parametrize("kind", KINDS)
def test_batches_beyond_those_of_the_first_pass_are_left_out_and_told_once(kind: Any) -> None:
    told: list[str] = []
    notices.report_to(lambda notice: told.append(notice.text))
    source = kind(lengths(5, 5, 7, 8))
    counts = [read_whole(source, epoch) for epoch in range(4)]
    notices.report_to(None)
    assert counts == [5, 5, 5, 5]
    assert [source.cut_off(epoch) for epoch in range(4)] == [False, False, True, True]
    assert [t.partition(":")[0] for t in told] == ["warning"]
    assert "x gives more batches in some epochs than in the first one, which had 5" in told[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("now", "message"), [(5, "more than 4"), (3, "3")])
def test_another_length_than_a_checkpoint_knows_is_refused(
    kind: Any, now: int, message: str
) -> None:
    source = kind(lengths(now))
    source.expect_batches_per_pass(4)
    assert source.batches_per_pass == 4
    with pytest.raises(DataError, match=f"x has {message} batches per pass, but had 4 when"):
        read_whole(source, 0)


def test_the_length_that_a_checkpoint_knows_is_expected_once() -> None:
    source = input_of(lengths(4, 6))
    source.expect_batches_per_pass(4)
    assert [read_whole(source, epoch) for epoch in range(2)] == [4, 4]
    assert source.cut_off(1)
    notices.report_to(None)


class Workers:
    """One worker's view of itself and another one.

    Stands for the step and the communicator.
    """

    def __init__(self, other_has_ended: bool) -> None:
        self.other = other_has_ended
        self.taken: list[LocalBatch] = []

    def step(self, batch: LocalBatch, step: int, stop: bool) -> None:
        assert stop
        self.taken.append(batch)

    def collective(self) -> Any:
        return contextlib.nullcontext()

    def any_true(self, flag: bool, name: str) -> bool:
        return flag or self.other == (name == "elastic_data_ended")


def runner_of(workers: Workers, dataset: tf.data.Dataset) -> PhaseRunner:
    return PhaseRunner(input_of(dataset), workers.step)  # type: ignore[arg-type]


AT = Cursor(step=3, global_step=13)
MINE = Share(0, 1)
NOTHING_READ = LastBatch(None, MINE)


@pytest.mark.parametrize("has_read", [True, False])
def test_all_come_to_the_end_together(has_read: bool) -> None:
    """The step that stops has the size of those of the other workers, which may have a batch."""
    workers = Workers(other_has_ended=True)
    runner = runner_of(workers, lengths(3))
    read = list(runner.input.batches(0, MINE, 0))[-1] if has_read else None
    announce_end(runner, workers, AT, LastBatch(read, MINE))  # type: ignore[arg-type]
    (batch,) = workers.taken
    assert batch.part.num_examples_of_step == 2
    assert (batch.part.start, batch.part.stop) == (0, 2)
    assert batch.data.numpy().tolist() == ([0, 0] if read is None else read.data.numpy().tolist())


def test_rows_of_every_kind_stand_in_for_those_that_lack() -> None:
    sparse = tf.sparse.from_dense([[0.0, 2.0], [1.0, 0.0]])
    batch = {
        "pairs": tf.reshape(tf.range(8), [4, 2]),  # two entries per example
        "ragged": tf.ragged.constant([[1, 2], [3]]),
        "sparse": sparse,
        "table": tf.constant([5.0, 6.0, 7.0]),
        "text": tf.constant(["a", "b"]),
        "x": tf.constant([1.0, 2.0]),
    }
    entries = [2, 1, 1, 0, 1, 1]
    nothing = structure.cut(batch, 0, 0, entries)
    for some in (batch, None):
        found = structure.filled(nothing, some, 3, entries)
        assert found["pairs"].shape == (6, 2)
        assert found["ragged"].to_list() == ([[1, 2], [3], [1, 2]] if some else [[], [], []])
        assert found["sparse"].shape == (3, 2)
        assert found["table"] is nothing["table"]
        assert found["text"].numpy().tolist() == ([b"a", b"b", b"a"] if some else [b""] * 3)
        assert found["x"].dtype == tf.float32


@pytest.mark.parametrize("mine", [True, False])
def test_who_ends_elsewhere_is_told(mine: bool) -> None:
    workers = Workers(other_has_ended=not mine)
    runner = runner_of(workers, lengths(3))
    call: Any = functools.partial(announce_end, last=NOTHING_READ) if mine else data_have_ended
    with pytest.raises(DataError, match="have ended after 3 batches of this epoch") as caught:
        call(runner, workers, AT)
    assert ("in this worker they have ended" in str(caught.value)) == mine


def test_a_stop_of_callbacks_is_no_end_of_data() -> None:
    workers = Workers(other_has_ended=False)
    assert not data_have_ended(runner_of(workers, lengths(3)), workers, AT)  # type: ignore[arg-type]


def test_a_known_length_costs_nothing() -> None:
    workers: Any = None
    runner = PhaseRunner(input_of(tf.data.Dataset.range(8).batch(2)), workers)
    announce_end(runner, workers, AT, NOTHING_READ)
    assert not data_have_ended(runner, workers, AT)
