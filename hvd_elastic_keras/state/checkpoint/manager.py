"""Finds the checkpoint that a training goes on from, and checks that it fits.

`load_initial_weights` loads the weights that a job starts from: from a Keras file, a checkpoint, or
another job.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.errors import ConfigurationError, in_one_line
from hvd_elastic_keras.settings.options import KEEP_CHECKPOINTS
from hvd_elastic_keras.settings.training_config import TrainingConfig
from hvd_elastic_keras.state.checkpoint import directories
from hvd_elastic_keras.state.checkpoint.ownership import Owner
from hvd_elastic_keras.state.checkpoint.places import Place
from hvd_elastic_keras.state.checkpoint.store import PREFIX, CheckpointStore, Found, Term, Values
from hvd_elastic_keras.state.parts import check_version
from hvd_elastic_keras.state.run_state import VERSION

EXPECTED = (
    "a file of Keras (.keras, .weights.h5), a checkpoint (…/checkpoints/step-…), or the "
    "directory of a job that has written one of these"
)


@dataclasses.dataclass(frozen=True)
class Origin:
    """Settings that must be equal in the run that wrote a checkpoint and in the run that reads it.

    With another value, steps would mean other examples: some would be repeated, others lost.
    """

    batch: str
    batch_size_per_worker: int
    global_batch_size: int
    micro_batch_size: int
    seed: int
    num_examples: int | None
    drop_remainder: bool = False

    @classmethod
    def of(cls, config: TrainingConfig, micro_batch_size: int, num_examples: int) -> Origin:
        """Returns the origin of a training."""
        return cls(
            batch=config.batch,
            batch_size_per_worker=config.batch_size_per_worker,
            global_batch_size=config.global_batch_size,
            micro_batch_size=micro_batch_size,
            seed=config.seed,
            num_examples=num_examples,
            drop_remainder=config.drop_remainder,
        )


class CheckpointManager:
    """The checkpoints of one training.

    Args:
      keep, term, before_publishing, owner: see `CheckpointStore`.
    """

    def __init__(
        self,
        directory: Place,
        origin: Origin,
        keep: int = KEEP_CHECKPOINTS,
        term: Term = None,
        *,
        before_publishing: Callable[[], None] = lambda: None,
        owner: Owner | None = None,
    ) -> None:
        self._store = CheckpointStore(
            directory, keep, term, before_publishing=before_publishing, owner=owner
        )
        self._origin = dataclasses.asdict(origin)

    def save(self, step: int, variables: Sequence[Values], run: dict[str, Any]) -> Place:
        """Writes a checkpoint of variables, or of their values; `run` is the rest of the state.

        Raises:
          CheckpointNotWrittenError: as `CheckpointStore.save`.
        """
        return self._store.save(step, variables, {"origin": self._origin, "run": run})

    def check_newest(self, variables: Sequence[tf.Variable]) -> Place | None:
        """Returns the newest checkpoint that is whole, if there is one.

        Raises:
          ConfigurationError: this training cannot go on from it.
        """
        found = self._checked(self._store.newest(), variables)
        return found[0] if found else None

    def load_newest(
        self, variables: Sequence[tf.Variable], warn: Callable[[str], None]
    ) -> Found | None:
        """Loads the variables from the newest checkpoint, and returns the rest of its state.

        Args:
          warn: called with a line about each damaged checkpoint.

        Raises:
          ConfigurationError: this training cannot go on from it.
        """
        found = self._checked(self._store.newest(warn), variables)
        if found is None:
            return None
        path, state = found
        self._store.load_variables(path, variables)
        return path, state["run"]

    def remove_unfinished(self) -> None:
        """Removes checkpoints that killed processes left unfinished. None may write meanwhile."""
        self._store.remove_unfinished()

    def _checked(self, found: Found | None, variables: Sequence[tf.Variable]) -> Found | None:
        """Returns the checkpoint found, after checking that this training can go on from it."""
        if found is None:
            return None
        path, state = found
        if "origin" not in state:
            raise ConfigurationError(
                f"The checkpoint {path} was written by a training loop of your own (elastic.run), "
                "but now fit or Trainer wants to go on from it. Use another job_dir."
            )
        self._store.check_variables(path, state, variables)
        self._check_origin(path, state["origin"])
        check_version(state["run"], VERSION, str(path))
        return found

    def _check_origin(self, path: Place, found: dict[str, Any]) -> None:
        for name, value in self._origin.items():
            was = found.get(name)
            if was != value and name == "num_examples":
                raise ConfigurationError(
                    f"The checkpoint {path} was made with {_examples(was)}, but now there are "
                    f"{_examples(value)}. Going on would repeat or lose some. Use the same data, "
                    "or another job_dir."
                )
            if was != value:
                raise ConfigurationError(
                    f"The checkpoint {path} was made with {name}={was}, but now {name}={value}. "
                    f"Going on would repeat or lose examples. Use {name}={was}, or another job_dir."
                )


def _examples(count: int | None) -> str:
    return "batches of any number of examples" if count is None else f"{count:,} training examples"


def load_initial_weights(model: keras.Model, path: Path, flag: str = "init_from") -> Path:
    """Loads the weights at `path` into a model. Optimizers and metrics begin anew.

    Args:
      model: a built model with the same number of weights, of the same shapes.
      flag: the option that has asked for the weights, for messages.

    Returns:
      The file, or the directory of the checkpoint, that held the weights.

    Raises:
      ConfigurationError: there are no weights, or they do not fit this model.
    """
    source = _weights_found(path, flag)
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


def _weights_found(path: Path, flag: str) -> Path:
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
