"""A `shuffle` below a `repeat`: workers that join later read what plain Keras would.

One iterator takes a seed of the shuffle for each repetition that it begins. How many it has taken
depends on how far it is read.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

keras = pytest.importorskip("keras")

import tensorflow as tf

from hvd_elastic_keras.common.batch_plan import Share
from hvd_elastic_keras.data.input.batch_pipeline import BatchPipeline
from hvd_elastic_keras.data.input.fit_epochs import FitInput
from hvd_elastic_keras.data.plan.fit_passes import FitIterators, Passes, Reader
from hvd_elastic_keras.data.sources.dataset_batches import DatasetBatches, known_length
from hvd_elastic_keras.data.sources.iterators import without_prefetch

EPOCHS = 3
BATCH = 4
Batches = list[list[int]]


def shuffled(repeats: int | None, ahead: int = 0) -> tf.data.Dataset:
    """Returns batches, of which TensorFlow reads some ahead."""
    dataset = tf.data.Dataset.range(10).shuffle(10, seed=3).repeat(repeats).batch(BATCH)
    if ahead:
        return dataset.prefetch(ahead)
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)


def by_keras(dataset: tf.data.Dataset, steps: int | None, fits: int) -> list[Batches]:
    """Returns the batches of each epoch of plain `fit`s of one dataset."""
    read: list[Batches] = []

    class Model(keras.Model):
        def train_step(self, batch: tf.Tensor) -> dict[str, tf.Tensor]:
            read[-1].append(batch.numpy().tolist())
            return {"loss": tf.constant(0.0)}

    model = Model()
    model.compile(run_eagerly=True)
    begin = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: read.append([]))
    for _ in range(fits):
        model.fit(dataset, epochs=EPOCHS, steps_per_epoch=steps, verbose=0, callbacks=[begin])
    return read


class Worker:
    """A worker that joins before some epoch: it reads no epoch before that one."""

    def __init__(self, dataset: tf.data.Dataset, steps: int | None) -> None:
        self._dataset, self._steps = dataset, steps

    def fit(self, first: int = 0) -> list[Batches]:
        passes, length = Passes(self._steps), known_length(self._dataset)
        made = FitIterators(passes, None, {Reader.TRAINING: length}, EPOCHS, [])
        source = DatasetBatches(self._dataset, "x", made=made)
        data = FitInput(BatchPipeline(source, lambda size: BATCH), passes, lambda epoch: epoch)
        found = [list(self._epoch(data, epoch)) for epoch in range(first, EPOCHS)]
        data.finish(EPOCHS)
        return found

    def _epoch(self, data: FitInput, epoch: int) -> Iterator[list[int]]:
        for batch in data.batches(epoch, Share(0, 1), 0):
            yield np.asarray(batch.data).tolist()


@pytest.mark.parametrize(
    ("repeats", "steps"),
    [(2, None), (None, 2), (None, 3), (None, 5), (None, 11), (3, 4), (2, 2)],
)
@pytest.mark.parametrize("joins", range(2 * EPOCHS))
def test_a_joiner_reads_the_batches_of_plain_keras(
    repeats: int | None, steps: int | None, joins: int
) -> None:
    expected = by_keras(shuffled(repeats), steps, fits=2)
    worker = Worker(shuffled(repeats), steps)
    found = worker.fit(first=min(joins, EPOCHS)) + worker.fit(first=max(joins - EPOCHS, 0))
    assert found == expected[joins:]


@pytest.mark.parametrize("steps", [2, 3, 5])
def test_a_joiner_evaluates_the_batches_of_plain_keras(steps: int) -> None:
    dataset = shuffled(None)
    expected = [np.asarray(list(dataset.take(steps))).tolist() for _ in range(4)]
    passes = Passes(steps, goes_on=False)
    made = FitIterators(None, passes, {Reader.EVALUATION: None}, 4, [0, 1, 2, 3])
    for joins in range(4):
        source = DatasetBatches(shuffled(None), "x", made=made, reader=Reader.EVALUATION)
        data = FitInput(BatchPipeline(source, lambda size: BATCH), passes, lambda epoch: epoch)
        for epoch in range(joins, 4):
            read = data.batches(epoch, Share(0, 1), 0)
            assert [np.asarray(batch.data).tolist() for batch in read] == expected[epoch]


@pytest.mark.parametrize("ahead", [1, 3, 6])
@pytest.mark.parametrize("joins", [0, 2, EPOCHS])
def test_batches_that_a_prefetch_reads_ahead_count(ahead: int, joins: int) -> None:
    """The next training goes on from the seeds that they have taken."""
    expected = shuffled(None)
    assert len(list(expected.take(2 * EPOCHS + ahead))) == 2 * EPOCHS + ahead
    second = [batch.numpy().tolist() for batch in expected.take(2)]
    worker = Worker(shuffled(None, ahead), steps=2)
    worker.fit(first=joins)
    assert worker.fit()[0] == second


def test_tensorflow_reads_one_batch_ahead_by_itself() -> None:
    dataset = tf.data.Dataset.range(9)
    assert [without_prefetch(d)[1] for d in (dataset, dataset.prefetch(tf.data.AUTOTUNE))] == [1, 1]
    assert without_prefetch(shuffled(None))[1] == 0
    assert without_prefetch(dataset.prefetch(5).with_options(tf.data.Options()))[1] == 5
