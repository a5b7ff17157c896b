"""Values of variables that a training may come to: trials see the model with those, too."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator

import tensorflow as tf

from hvd_elastic_keras.keras_internals.model_variables import ModelVariables, unwrapped
from hvd_elastic_keras.step.micro_batches.micro_batch import MicroBatch

PERTURBATION = 0.1
"""Of weights, relative to their spread: at some initial values, zeros say, nothing can be told."""
LATER_STEPS = (9, 99, 999, 9_999, 1_000_001)
"""What the optimizer may have counted: the last steps of cycles, and one that is far away."""
FEW = 8
"""Numbers that may be weights of losses, or switches."""
Changed = tuple[tf.Variable, tf.Tensor]


def other_values(
    variables: ModelVariables, micro_batch: MicroBatch
) -> Iterator[contextlib.AbstractContextManager[None]]:
    """Gives variables other values, in several ways, each for a while.

    Weights are near what they are. Then, with them, single numbers and switches that a step reads,
    if there are any: the weight of a loss may begin at 0 and be raised by a callback, or follow
    from the steps that were taken.
    """
    weights = [v.value for v in variables.trainable if v.value.dtype.is_floating]
    numbers = list(_numbers(variables, micro_batch))
    counters = [v for v in map(unwrapped, variables.optimizer) if _counts(v)]
    counters = [v for v in counters if micro_batch.reads(v)]
    yield _changed(_near(weights))
    if numbers:
        yield _possibly(_changed(itertools.chain(_near(weights), map(_raised, numbers))))
    for steps in LATER_STEPS if counters else ():
        counted = [(v, tf.fill(v.shape, tf.cast(steps, v.dtype))) for v in counters]
        values = itertools.chain(_near(weights), map(_raised, numbers), counted)
        yield _possibly(_changed(values))


def _near(weights: Iterable[tf.Variable]) -> Iterator[Changed]:
    for number, weight in enumerate(weights):
        noise = tf.random.stateless_normal(weight.shape, [number, 0], dtype=tf.float32)
        spread = tf.math.reduce_std(tf.cast(weight, tf.float32))
        step = PERTURBATION * tf.where(spread > 0, spread, 1.0) * noise
        yield weight, weight + tf.cast(step, weight.dtype)


def _numbers(variables: ModelVariables, micro_batch: MicroBatch) -> Iterator[tf.Variable]:
    """What a step reads beside weights, also where no layer holds it."""
    held = (*variables.averaged, *variables.raw)
    others = (*variables.trainable, *variables.metrics, *variables.seeds, *variables.optimizer)
    known = {id(unwrapped(v)) for v in others}
    candidates = map(unwrapped, held) if micro_batch.read is None else micro_batch.read
    for variable in candidates:
        kind = variable.dtype.is_floating or variable.dtype.is_integer or variable.dtype.is_bool
        if kind and id(variable) not in known and (variable.shape.num_elements() or FEW + 1) <= FEW:
            yield variable


def _counts(variable: tf.Variable) -> bool:
    return bool(variable.dtype.is_integer and variable.shape.num_elements() == 1)


def _raised(variable: tf.Variable) -> Changed:
    value = variable.read_value()
    if variable.dtype.is_bool:
        return variable, tf.logical_not(value)
    step = PERTURBATION if variable.dtype.is_floating else 1
    return variable, value + tf.cast(step, value.dtype)


@contextlib.contextmanager
def _changed(values: Iterable[Changed]) -> Iterator[None]:
    """Assigns these values, for a while."""
    before: list[Changed] = []
    try:
        for variable, value in values:
            before.append((variable, tf.identity(variable)))
            variable.assign(value)
        yield
    finally:
        for variable, value in before:
            variable.assign(value)


@contextlib.contextmanager
def _possibly(values: contextlib.AbstractContextManager[None]) -> Iterator[None]:
    """These values, to which a training may never come: that they fail tells nothing."""
    with contextlib.suppress(Exception), values:
        yield
