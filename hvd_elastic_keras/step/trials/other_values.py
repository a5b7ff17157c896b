"""Values of a model's variables that a training may come to: a trial sees those, too."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import tensorflow as tf

from hvd_elastic_keras.keras_internals.model_variables import ModelVariables, unwrapped
from hvd_elastic_keras.step.micro_batches.micro_batch import MicroBatch

PERTURBATION = 0.1
"""Of weights, relative to their spread: at some initial values, zeros say, nothing can be told."""
LATER_STEPS = 10_000
"""What a training is tried after, too: the weight of a loss may rise for so long."""


@contextlib.contextmanager
def perturbed(variables: ModelVariables) -> Iterator[None]:
    """Moves the weights a little, for a while."""
    weights = [v.value for v in variables.trainable if v.value.dtype.is_floating]
    with _put_back(weights):
        for number, weight in enumerate(weights):
            noise = tf.random.stateless_normal(weight.shape, [number, 0], dtype=tf.float32)
            spread = tf.math.reduce_std(tf.cast(weight, tf.float32))
            step = PERTURBATION * tf.where(spread > 0, spread, 1.0) * noise
            weight.assign_add(tf.cast(step, weight.dtype))
        yield


def raised_numbers(
    variables: ModelVariables, micro_batch: MicroBatch
) -> Iterator[contextlib.AbstractContextManager[None]]:
    """Raises single numbers that a step reads, each kind for a while.

    The weight of a term of the loss may begin at 0 and be raised by a callback, or follow from the
    steps that were taken.
    """
    held = (*variables.averaged, *variables.raw, *variables.optimizer)
    single = [v for v in map(unwrapped, held) if v.shape.num_elements() == 1]
    read = [v for v in single if micro_batch.reads(v)]
    if weights := [v for v in read if v.dtype.is_floating]:
        yield _raised(weights, PERTURBATION)
    if counters := [v for v in read if v.dtype in (tf.int32, tf.int64)]:
        yield _raised(counters, LATER_STEPS)


@contextlib.contextmanager
def _raised(numbers: Sequence[tf.Variable], by: float) -> Iterator[None]:
    """Adds to them, for a while.

    A training may never come to such values, and they may be impossible: that tells nothing.
    """
    with _put_back(numbers), contextlib.suppress(tf.errors.InvalidArgumentError):
        for number in numbers:
            number.assign_add(tf.fill(number.shape, tf.cast(by, number.dtype)))
        yield


@contextlib.contextmanager
def _put_back(variables: Sequence[tf.Variable]) -> Iterator[None]:
    before = [tf.identity(v) for v in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)
