"""What this package needs of Keras beyond its public interface, checked in one place."""

from __future__ import annotations

import contextlib
import itertools
import re
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state

from hvd_elastic_keras.errors import ConfigurationError, DataError
from hvd_elastic_keras.training.apply_recorder import ApplyRecorder
from hvd_elastic_keras.training.variables import optimizers_of

LONGEST_MESSAGE = 400
"""Characters that are quoted; a message may list all labels of a batch."""
NOT_MEANS = ("sum", "none", None)
"""Reductions of losses; without any, `fit` follows the gradient of the sum."""


def check_compiled(model: Any) -> None:
    """Raises `ConfigurationError` if this is not a compiled Keras model."""
    if not isinstance(model, keras.Model):
        raise ConfigurationError(
            f"model is a {type(model).__module__}.{type(model).__name__}, expected a keras.Model."
        )
    if not model.compiled or model.optimizer is None:
        raise ConfigurationError(
            "The model is not compiled. Call model.compile(optimizer=..., loss=...), or define "
            "loss() and optimizer() in the model module."
        )
    _check_losses(model)
    _check_batch_dimension(model)


def check_fit(model: Any) -> None:
    """Raises `ConfigurationError` if `ElasticCallback` cannot take over this model's `fit`."""
    check_compiled(model)
    if model._distribute_strategy is not None:
        raise ConfigurationError(
            f"The model was made under {type(model._distribute_strategy).__name__}, expected no "
            "tf.distribute strategy: the workers of the job share the batches. Leave it out."
        )
    if type(model).make_train_function is not keras.Model.make_train_function:
        raise ConfigurationError(
            f"{type(model).__name__} overrides make_train_function, which is not called by several "
            "workers. Override train_step instead."
        )


def random_seed() -> int:
    """The seed given to `keras.utils.set_random_seed`, else 0."""
    return int(global_state.get_global_attribute("global_random_seed") or 0) % 2**31


def has_batch_norm(model: keras.Model) -> bool:
    """Whether a result depends on the other examples of its micro-batch."""
    kind = keras.layers.BatchNormalization
    return any(isinstance(layer, kind) for layer in model._flatten_layers())


def _check_losses(model: keras.Model) -> None:
    """Raises `ConfigurationError` for a loss whose sum over examples is not a mean.

    Micro-batches are averaged, weighted by their examples: that is the loss of the whole batch
    for a mean over examples only.
    """
    losses = tf.nest.flatten(getattr(model._compile_loss, "_user_loss", None))
    reductions = [getattr(loss, "reduction", "mean") for loss in losses]
    wrong = [reduction for reduction in reductions if reduction in NOT_MEANS]
    if wrong:
        raise ConfigurationError(
            f"A loss with reduction={wrong[0]!r} was given, expected a mean over the examples, "
            "which stays the same however a batch is divided. Use reduction='sum_over_batch_size' "
            "and, for the same steps, multiply the learning rate by the batch size."
        )


def _check_batch_dimension(model: keras.Model) -> None:
    """Raises `ConfigurationError` if the model accepts batches of one size only."""
    fixed = [i.shape for i in getattr(model, "inputs", None) or () if i.shape[0] is not None]
    if fixed:
        raise ConfigurationError(
            f"The model has an input of shape {fixed[0]}, with a fixed batch size, expected one "
            "that accepts any: workers compute smaller micro-batches. Use keras.Input(shape=...) "
            "without a batch size. Layers that are stateful from batch to batch need one, and "
            "cannot be trained by several workers."
        )


def build(model: keras.Model, batch_spec: Any, batch: Any = None) -> None:
    """Creates all variables of model, metrics and optimizer.

    Args:
      batch_spec: specs of a batch of any size; None where batches have nothing.
      batch: examples, for models that cannot be built without any.

    Raises:
      DataError: the model does not accept such examples.
    """
    symbolic = tf.nest.map_structure(
        lambda s: None if s is None else keras.KerasTensor(_dimensions(s), s.dtype.name),
        batch_spec,
    )
    has_call = type(model).call is not keras.Model.call
    if batch is not None and not has_call and not model.trainable_variables:
        _build_by_step(model, batch)
    try:
        if has_call:
            model._symbolic_build(data_batch=symbolic)
    except (ValueError, RuntimeError, TypeError, tf.errors.InvalidArgumentError) as error:
        raise _refusal(batch_spec, first_sentence(error)) from error
    for optimizer in optimizers_of(model):
        if not optimizer.built:
            optimizer.build(model.trainable_variables)


def _refusal(batch_spec: Any, keras_says: str) -> ConfigurationError:
    """What is wrong if Keras cannot build a model for such batches, as far as that can be told."""
    if keras_says.startswith("Could not interpret"):
        return ConfigurationError(
            f"The model is not compiled as it should be. Keras says: {keras_says} Change what "
            "model.compile() gets."
        )
    remedy = "Change the data or the model's Input."
    leaves = [leaf for leaf in tf.nest.flatten(batch_spec) if leaf is not None]
    if any(leaf.dtype == tf.string for leaf in leaves):
        remedy = (
            "Examples are bytes or strings: make numbers of them, for example by giving "
            "(source, preprocess) with a function that parses one example."
        )
    elif not isinstance(batch_spec, tuple | list):
        remedy = "There are no targets: give (inputs, targets)."
    elif any(len(leaf.shape) > 1 and leaf.shape[1] is None for leaf in leaves):
        remedy = "If the dataset has batches already, leave batch() out: give single examples."
    return DataError(
        f"The model does not accept the data. A batch is {describe(batch_spec)}; expected "
        "(inputs, targets) or (inputs, targets, sample_weight) of the shapes of the "
        f"model's inputs and outputs. Keras says: {keras_says} {remedy}"
    )


def _dimensions(spec: Any) -> tuple[int | None, ...]:
    return tuple(spec.shape)


def _build_by_step(model: keras.Model, batch: Any) -> None:
    """Lets `train_step` make the variables, without any effect.

    For models that define `train_step` but not `call`. In a scope that keeps all assignments to
    itself, new variables have no values yet, so that the step may fail where it uses them.
    """
    recorder = ApplyRecorder(optimizers_of(model))
    scope = keras.StatelessScope(collect_losses=True)
    with contextlib.suppress(Exception), recorder.recording(), scope:
        model.train_step(batch)


def describe(element_spec: Any) -> str:
    """The structure of a batch for people: `((None, 8, 8, 1) float32, (None,) int64)`."""
    if element_spec is None:
        return "None"
    if isinstance(element_spec, dict):
        return "{" + ", ".join(f"{k}: {describe(v)}" for k, v in element_spec.items()) + "}"
    if isinstance(element_spec, tuple | list):
        return "(" + ", ".join(describe(v) for v in element_spec) + ")"
    return f"{tuple(element_spec.shape)} {element_spec.dtype.name}"


def first_sentence(error: Exception) -> str:
    """The message of Keras or TensorFlow, without colours and the list of arguments behind it."""
    plain = re.sub("\x1b\\[[0-9;]*m", "", str(error))
    plain = re.sub(r"{{function_node [^}]*}} *| *\[Op:\w+\]( name: *)?", "", plain)
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    useful = itertools.takewhile(lambda line: not line.startswith("Arguments received"), lines)
    text = " ".join(useful).rstrip(".") + "."
    return text if len(text) <= LONGEST_MESSAGE else text[:LONGEST_MESSAGE] + " …"
