"""Checks whether this package works with the installed Keras.

This module is imported before any code that relies on private names of Keras, because another
release may lack them. All these names are in this folder, so one check at start finds the missing
ones.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import keras
import tensorflow as tf

from hvd_elastic_keras.common import errors
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.common.versions import KERAS, TENSORFLOW

# Among other things, this package relies on the local variables of `Model.fit`.
REMEDY = (
    f"Install one of these: pip install 'keras{KERAS.requirement}' "
    f"'tensorflow{TENSORFLOW.requirement}'."
)
METHODS: dict[type, tuple[str, ...]] = {
    keras.Model: ("_symbolic_build", "_flatten_layers", "_get_own_metrics"),
    keras.callbacks.TensorBoard: ("_close_writers", "_pop_writer", "_push_writer"),
    keras.optimizers.Optimizer: ("_get_current_learning_rate",),
    tf.data.Dataset: ("_inputs", "_functions"),
}
"""Private methods that are called or replaced."""


def check() -> None:
    """Raises `ConfigurationError` for a backend or release this package does not work with."""
    if keras.backend.backend() != "tensorflow":
        raise ConfigurationError(
            f"Keras runs on {keras.backend.backend()}, expected TensorFlow. "
            "Set KERAS_BACKEND=tensorflow."
        )
    if not KERAS.holds(keras.__version__):
        raise ConfigurationError(
            f"Keras {keras.__version__} is installed, expected {KERAS}. {REMEDY}"
        )
    missing = missing_names()
    if missing:
        raise ConfigurationError(
            f"Keras {keras.__version__} with TensorFlow {tf.__version__} lacks what this package "
            f"relies on: {'; '.join(missing)}. {REMEDY}"
        )


def missing_names() -> list[str]:
    """Returns the private names that the installed Keras and TensorFlow lack, as sentences."""
    missing = [
        f"{owner.__name__} has no {name}"
        for owner, names in METHODS.items()
        for name in names
        if not hasattr(owner, name)
    ]
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        try:
            importlib.import_module(f"{__package__}.{module.name}")
        except (ImportError, AttributeError) as error:
            missing.append(str(error))
    if not missing:
        missing += importlib.import_module(f"{__package__}.dataset_parts").missing_attributes()
    return missing


def check_in_script() -> None:
    """Runs `check` when a script imports a name that needs Keras."""
    try:
        check()
    except ConfigurationError:
        errors.show_in_one_line()
        raise
