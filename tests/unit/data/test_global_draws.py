"""Generators of Python draw the same random numbers in all workers, whatever else is drawn."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvd_elastic_keras.data.plan.fit_passes import FitIterators, Passes, Reader
from hvd_elastic_keras.data.sources import global_draws
from hvd_elastic_keras.data.sources.dataset_batches import DatasetBatches
from hvd_elastic_keras.data.sources.generator_batches import GeneratorBatches, generator_state
from hvd_elastic_keras.data.sources.global_draws import OwnState, SeededFunction

SEED = 5


def drawn() -> tuple[float, float]:
    with global_draws.undisturbed():  # threads of tf.data read ahead
        return random.random(), np.random.rand()


def test_a_function_draws_from_the_seed_of_each_call() -> None:
    keras.utils.set_random_seed(1)
    function = SeededFunction(lambda x: (x, drawn()), "")
    found = [function(seed, 7) for seed in (3, 4, 3)]
    assert found[0] == found[2] != found[1]
    after = drawn()
    keras.utils.set_random_seed(1)
    assert after == drawn()  # the script has lost no number


def test_a_function_that_draws_nothing_is_soon_called_directly() -> None:
    quiet = SeededFunction(lambda x: x + 1, "")
    assert [quiet(0, n) for n in range(20)] == list(range(1, 21))
    assert quiet._calls == global_draws.LOOKED_AT


def test_a_state_of_its_own_goes_on_where_it_was() -> None:
    keras.utils.set_random_seed(1)
    own, seeded = OwnState(""), OwnState("", 8)
    found = []
    for _ in range(3):
        with own.drawing():
            found.append(drawn())
        drawn()
        with seeded.drawing():
            drawn()
    keras.utils.set_random_seed(1)
    assert found == [drawn() for _ in range(3)]  # as if nobody else drew


def windows(low: int) -> Iterator[Any]:
    while True:
        yield np.full([2], low + np.random.rand(), np.float32)


def dataset(low: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_generator(
        windows, args=(low,), output_signature=tf.TensorSpec([2], tf.float32)
    ).batch(3)


def batches_of(data: tf.data.Dataset, reader: Reader) -> DatasetBatches:
    passes = Passes(4) if reader is Reader.TRAINING else Passes(2, goes_on=False)
    made = FitIterators(
        passes if reader is Reader.TRAINING else None,
        passes if reader is Reader.EVALUATION else None,
        dict.fromkeys(Reader),
        epochs=3,
        evaluated=[0, 1, 2],
    )
    return DatasetBatches(data, "x", made=made, reader=reader, seed=SEED)


def some(batches: Iterator[Any], count: int) -> list[Any]:
    return [np.asarray(next(batches)) for _ in range(count)]


def test_generators_of_datasets_do_not_disturb_each_other() -> None:
    keras.utils.set_random_seed(1)
    plain = some(iter(dataset(0)), 12)

    def read(evaluations: int) -> tuple[list[Any], list[Any]]:
        with global_draws.undisturbed():
            keras.utils.set_random_seed(1)
        train = batches_of(dataset(0), Reader.TRAINING)
        evaluation = batches_of(dataset(10), Reader.EVALUATION)
        batches = train.open(0, 0)
        trained, evaluated = [], []
        for number in range(3):
            trained += some(batches, 4)
            drawn()
            if number >= 3 - evaluations:
                evaluated.append(some(evaluation.open(number, 0), 2))
        for source in (train, evaluation):
            source.finish(3, stopped=False)
        return trained, evaluated

    trained, evaluated = read(3)
    late, newest = read(1)  # a newcomer replays the training, and no evaluation
    np.testing.assert_array_equal(late, trained)
    np.testing.assert_array_equal(newest[-1], evaluated[-1])
    assert not np.array_equal(evaluated[0], evaluated[1])
    np.testing.assert_array_equal(trained, plain)


def test_a_generator_of_fit_draws_as_if_nothing_else_did() -> None:
    def read(others: int) -> list[Any]:
        keras.utils.set_random_seed(1)
        generator = windows(0)
        first = [next(generator) for _ in range(2)]
        own = generator_state("x", Reader.TRAINING, SEED)
        spec = tf.TensorSpec([None], tf.float32)
        batches = GeneratorBatches(first, generator, spec, "x", Passes(4), draws=own)
        found = []
        for batch in some(batches.open(0, 0), 6):
            found.append(batch)
            for _ in range(others):
                drawn()
        return found

    np.testing.assert_array_equal(read(0), read(3))
