"""What this package needs of Keras beyond its public interface, checked in one place."""

from __future__ import annotations

import itertools
import re
from typing import Any

import keras
import tensorflow as tf

from hvd_elastic_keras.errors import ConfigurationError, DataError

OLDEST, NEWEST = (3, 8), (3, 15)
"""Tested range of Keras releases: `StatelessScope` and `_symbolic_build` are relied on."""


def check_versions() -> None:
    """Raises `ConfigurationError` for a backend or release this package does not work with."""
    if keras.backend.backend() != "tensorflow":
        raise ConfigurationError(
            f"Keras runs on {keras.backend.backend()}, expected TensorFlow. "
            "Set KERAS_BACKEND=tensorflow."
        )
    version = tuple(int(part) for part in keras.__version__.split(".")[:2])
    if not OLDEST <= version <= NEWEST:
        raise ConfigurationError(
            f"Keras {keras.__version__} is installed, expected {OLDEST[0]}.{OLDEST[1]} to "
            f"{NEWEST[0]}.{NEWEST[1]}. Install one of these: pip install 'keras>=3.8,<3.16'."
        )


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
    if model.run_eagerly:
        raise ConfigurationError(
            "The model was compiled with run_eagerly=True, but a step must be a graph to be "
            "atomic. Compile it with run_eagerly=False."
        )


def build(model: keras.Model, element_spec: Any) -> None:
    """Creates all variables of model, metrics and optimizer, without any data.

    Raises:
      DataError: the model does not accept such examples.
    """
    batch = tf.nest.map_structure(
        lambda spec: keras.KerasTensor((None, *spec.shape), spec.dtype.name), element_spec
    )
    try:
        model._symbolic_build(data_batch=batch)
    except (ValueError, RuntimeError, TypeError, tf.errors.InvalidArgumentError) as error:
        raise DataError(
            f"The model does not accept the data. An example is {describe(element_spec)}; expected "
            "(inputs, targets) or (inputs, targets, sample_weight) of the shapes of the model's "
            f"inputs and outputs. Keras says: {_first_sentence(error)} Change dataset() or the "
            "model's Input."
        ) from error
    model.optimizer.build(model.trainable_variables)


def describe(element_spec: Any) -> str:
    """The structure of an example for people: `((8, 8, 1) float32, () int64)`."""
    if isinstance(element_spec, dict):
        return "{" + ", ".join(f"{k}: {describe(v)}" for k, v in element_spec.items()) + "}"
    if isinstance(element_spec, tuple | list):
        return "(" + ", ".join(describe(v) for v in element_spec) + ")"
    return f"{tuple(element_spec.shape)} {element_spec.dtype.name}"


def _first_sentence(error: Exception) -> str:
    """Keras's message without colours and without the list of arguments behind it."""
    plain = re.sub("\x1b\\[[0-9;]*m", "", str(error))
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    useful = itertools.takewhile(lambda line: not line.startswith("Arguments received"), lines)
    return " ".join(useful).rstrip(".") + "."
