"""Weights that a job starts from: from a Keras file, a checkpoint, or another job."""

from __future__ import annotations

import warnings
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.errors import ConfigurationError, in_one_line
from hvd_elastic_keras.state.checkpoint import directories
from hvd_elastic_keras.state.checkpoint.store import PREFIX

EXPECTED = (
    "a file of Keras (.keras, .weights.h5), a checkpoint (…/checkpoints/step-…), or the "
    "directory of a job that has written one of these"
)


def load(model: keras.Model, path: Path, flag: str = "init_from") -> Path:
    """Loads the weights at `path` into a model. Optimizers and metrics begin anew.

    Args:
      model: a built model with the same number of weights, of the same shapes.
      flag: the option that has asked for the weights, for messages.

    Returns:
      The file, or the directory of the checkpoint, that held the weights.

    Raises:
      ConfigurationError: there are no weights, or they do not fit this model.
    """
    source = _found(path, flag)
    try:
        if source.is_dir():
            _read_checkpoint(model, source)
        else:
            _read_file(model, source)
    except (OSError, ValueError, KeyError, AssertionError, tf.errors.OpError) as error:
        raise ConfigurationError(
            f"--{flag}={path} was given, but {source} does not have the weights of this model: "
            f"{in_one_line(error)}. Give one that the same model was saved to."
        ) from error
    return source


def _found(path: Path, flag: str) -> Path:
    """Returns the file with the weights, or the directory of the checkpoint."""
    if path.is_file() or (path / f"{PREFIX}.index").is_file():
        return path
    for name in (files.MODEL, files.WEIGHTS):
        if (path / name).is_file():
            return path / name
    for directory in (path / files.CHECKPOINTS, path):
        if checkpoints := directories.by_age(directory):
            return Path(str(checkpoints[-1]))
    there = "holds no weights" if path.exists() else "does not exist"
    raise ConfigurationError(f"--{flag}={path} was given, which {there}. Expected {EXPECTED}.")


def _read_file(model: keras.Model, file: Path) -> None:
    """Loads the weights only, although Keras keeps the optimizer's state beside them."""
    optimizer = getattr(model, "optimizer", None)  # a model that is not compiled has none
    own = [(variable, np.array(variable)) for variable in getattr(optimizer, "variables", ())]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Skipping variable loading for optimizer")
        model.load_weights(file)
    for variable, value in own:
        variable.assign(value)


def _read_checkpoint(model: keras.Model, directory: Path) -> None:
    """Loads the variables of the model, which come first in a checkpoint."""
    checkpoint = tf.train.Checkpoint(variables=[v.value for v in model.variables])
    checkpoint.read(str(directory / PREFIX)).assert_existing_objects_matched()
