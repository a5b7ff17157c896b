"""A newcomer reads its input up to the others' position, before it has a place among them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from hvd_elastic_keras.common.batch_plan import Share
from hvd_elastic_keras.common.errors import DataError
from hvd_elastic_keras.common.protocol import InputPosition
from hvd_elastic_keras.data.input.batch_pipeline import BatchPipeline
from hvd_elastic_keras.data.input.fit_epochs import FitInput
from hvd_elastic_keras.data.input.per_worker import PerWorkerInput
from hvd_elastic_keras.data.input.pipeline import Pipeline
from hvd_elastic_keras.data.plan.fit_passes import Passes
from hvd_elastic_keras.data.sources.dataset_batches import DatasetBatches
from hvd_elastic_keras.data.sources.source import as_source
from hvd_elastic_keras.loop import newcomer
from hvd_elastic_keras.loop.newcomer import ReadAlong
from hvd_elastic_keras.loop.observers.growing_batch import PerWorkerRunner
from hvd_elastic_keras.loop.phase import PhaseRunner
from hvd_elastic_keras.loop.shares import Balance
from hvd_elastic_keras.state.cursor import Cursor, Phase

SIZE, BATCH = 400, 4
NO_STEP: Any = None
"""No step is computed here."""


class Counted:
    """A dataset of numbers that knows how many of them have been read."""

    def __init__(self) -> None:
        self.read = 0

    def dataset(self, epoch: int = 0) -> tf.data.Dataset:
        def number(index: Any) -> Any:
            self.read += 1
            return index

        numbers = tf.data.Dataset.range(1000 * epoch, 1000 * epoch + SIZE)
        return numbers.map(lambda i: tf.ensure_shape(tf.numpy_function(number, [i], tf.int64), []))


def of_examples(counted: Counted) -> PhaseRunner:
    source = as_source(counted.dataset, seed=0, shuffle=False, name="the data")
    return PhaseRunner(Pipeline(source, BATCH, BATCH), NO_STEP)


def of_batches(counted: Counted) -> PhaseRunner:
    batches = DatasetBatches(counted.dataset().batch(BATCH), "the data")
    pipeline = BatchPipeline(batches, lambda size: size)
    return PhaseRunner(FitInput(pipeline, Passes(), lambda epoch: epoch), NO_STEP)


def of_worker_batches(counted: Counted) -> PhaseRunner:
    source = as_source(counted.dataset, seed=0, shuffle=False, name="the data")
    return PerWorkerRunner(PerWorkerInput(Pipeline(source, BATCH, BATCH)), NO_STEP)


KINDS = {"examples": of_examples, "batches": of_batches, "worker batches": of_worker_batches}


class Others:
    """Workers that have advanced each time they are asked, up to the last of `positions`."""

    def __init__(self, runner: PhaseRunner, cursors: list[Cursor]) -> None:
        self._positions = [runner.position(cursor, training=1) for cursor in cursors]
        self._asked = 0
        self.reached = threading.Event()
        """Set once the asking worker has reached the others' last position."""

    def __call__(self) -> InputPosition:
        self._asked += 1
        if self._asked > len(self._positions):
            self.reached.set()
        return self._positions[min(self._asked, len(self._positions)) - 1]


def at(epoch: int, step: int) -> Cursor:
    """Returns a cursor whose number of worker batches equals its number of batches."""
    return Cursor(epoch=epoch, step=step, worker_batches=step)


@pytest.fixture(autouse=True)
def ask_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newcomer, "ASK_INTERVAL_S", 0.001)


@pytest.mark.parametrize("kind", KINDS)
def test_only_what_came_after_is_left_to_read(kind: str) -> None:
    counted = Counted()
    runner = KINDS[kind](counted)
    assert runner.input.from_front
    # The others are one step further, then many steps further, then in the next epoch.
    others = Others(runner, [at(0, 10), at(0, 11), at(0, 60), at(1, 50)])
    along = ReadAlong({Phase.TRAIN: runner}, others)
    along.start(gives_up=never)
    assert others.reached.wait(30)
    along.after_entering()
    behind = 1 if kind == "worker batches" else 0
    assert counted.read >= (60 + 50 - 2 * behind) * BATCH
    batch = next(runner.batches(at(1, 52), 0, Balance(1, runner.input.num_micro_batches)))
    first = (1000 if kind != "batches" else 0) + 52 * BATCH
    np.testing.assert_array_equal(batch.data, range(first, first + BATCH))


def shuffled_examples() -> PhaseRunner:
    numbers = tf.data.Dataset.range(SIZE).shuffle(SIZE, seed=1)
    source = as_source(numbers, seed=0, shuffle=False, name="x")
    return PhaseRunner(Pipeline(source, BATCH, BATCH), NO_STEP)


def shuffled_batches(steps_per_epoch: int | None = None) -> PhaseRunner:
    numbers = tf.data.Dataset.range(SIZE).shuffle(SIZE, seed=1).batch(BATCH)
    pipeline = BatchPipeline(DatasetBatches(numbers, "x"), lambda size: size)
    return PhaseRunner(FitInput(pipeline, Passes(steps_per_epoch), lambda epoch: epoch), NO_STEP)


def shuffled_worker_batches() -> PhaseRunner:
    numbers = tf.data.Dataset.range(SIZE).shuffle(SIZE, seed=1)
    source = as_source(numbers, seed=0, shuffle=False, name="x")
    return PerWorkerRunner(PerWorkerInput(Pipeline(source, BATCH, BATCH)), NO_STEP)


@pytest.mark.parametrize(
    ("kind", "told", "survivors"),
    [
        (shuffled_examples, at(2, 0), at(1, 99)),
        (shuffled_batches, at(2, 0), at(1, 99)),
        (lambda: shuffled_batches(25), at(6, 0), at(5, 24)),
        (lambda: shuffled_batches(25), at(8, 0), at(7, 24)),
        (shuffled_batches, at(2, 1), at(2, 0)),
        (shuffled_worker_batches, at(2, 0), Cursor(epoch=1, step=33, worker_batches=99)),
        (
            shuffled_worker_batches,
            Cursor(epoch=2, step=20, worker_batches=60),
            Cursor(epoch=2, step=19, worker_batches=57),
        ),
    ],
)
def test_a_spare_follows_survivors_that_are_a_step_behind_the_one_that_told_where_it_was(
    kind: Callable[[], PhaseRunner], told: Cursor, survivors: Cursor
) -> None:
    """The first worker in the next pass was lost. The shuffled pass before has continued."""
    orders = []
    for first in (told, survivors):
        runner = kind()
        runner.input.first_batch()
        others = Others(runner, [first])
        along = ReadAlong({Phase.TRAIN: runner}, others)
        along.start(gives_up=never)
        assert others.reached.wait(30)
        along.after_entering()
        batches = runner.batches(survivors, 0, Balance(1, runner.input.num_micro_batches))
        orders.append(next(batches).data.numpy().tolist())
    assert orders[0] == orders[1]


def never() -> bool:
    return False


def test_nothing_is_read_where_nobody_is() -> None:
    counted = Counted()
    runner = of_examples(counted)
    along = ReadAlong({Phase.TRAIN: runner}, lambda: None)
    along.start(gives_up=never)
    along.after_entering()
    assert counted.read == 0


def test_it_stops_between_batches_when_told_to() -> None:
    runner = of_examples(Counted())
    left = iter([True] * 5)
    runner.read_up_to(at(0, 90), goes_on=lambda: next(left, False))
    batch = next(runner.input.batches(0, Share(0, 1), 5))
    np.testing.assert_array_equal(batch.data, range(5 * BATCH, 6 * BATCH))


def test_an_error_of_the_data_is_left_to_the_step_that_meets_it() -> None:
    def fails(index: int) -> int:
        raise ValueError("broken")

    def dataset(epoch: int) -> tf.data.Dataset:
        data = tf.data.Dataset.range(SIZE)
        broken = data.map(lambda i: tf.ensure_shape(tf.numpy_function(fails, [i], tf.int64), []))
        return data if epoch == 0 else broken

    source = as_source(dataset, seed=0, shuffle=False, name="the data")
    runner = PhaseRunner(Pipeline(source, BATCH, BATCH), NO_STEP)
    along = ReadAlong({Phase.TRAIN: runner}, lambda: runner.position(at(1, 9), 1))
    along.start(gives_up=never)
    along.after_entering()
    with pytest.raises(DataError, match=r"Batch 0 of pass 1 over the data .* ValueError: broken"):
        next(runner.input.batches(1, Share(0, 1), 9))
