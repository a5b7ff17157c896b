"""Checkpoints on disk: a TensorFlow checkpoint of the variables and a versioned JSON file.

    <job_dir>/checkpoints/step-00000120/state.json
    <job_dir>/checkpoints/step-00000120/variables.index, variables.data-…

A checkpoint is written under a temporary name and renamed when it is complete, so that whatever
has its final name is whole.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.errors import ConfigurationError

FORMAT_VERSION = 1
KEEP = 2
PREFIX = "variables"
STATE = "state.json"


class CheckpointStore:
    """The checkpoints of one job."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def save(self, step: int, variables: Sequence[tf.Variable], state: dict[str, Any]) -> Path:
        """Writes a checkpoint of optimizer step `step` and removes old ones."""
        final = self._directory / f"step-{step:08d}"
        temporary = self._directory / f".step-{step:08d}.{os.getpid()}"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            _checkpoint(variables).write(str(temporary / PREFIX))
            content = {"version": FORMAT_VERSION, "step": step, **state}
            (temporary / STATE).write_text(json.dumps(content))
            shutil.rmtree(final, ignore_errors=True)
            temporary.replace(final)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        for old in self._all()[:-KEEP]:
            shutil.rmtree(old, ignore_errors=True)
        return final

    def newest(self) -> Path | None:
        """The newest checkpoint, if there is one."""
        found = self._all()
        return found[-1] if found else None

    def load_state(self, path: Path) -> dict[str, Any]:
        """Reads the JSON part.

        Raises:
          ConfigurationError: it is damaged or of another format version.
        """
        try:
            content: dict[str, Any] = json.loads((path / STATE).read_text())
            version = content["version"]
        except (OSError, ValueError, KeyError) as error:
            raise ConfigurationError(
                f"The checkpoint {path} is damaged ({error}). Remove that directory to use the "
                "one before it."
            ) from error
        if version != FORMAT_VERSION:
            raise ConfigurationError(
                f"The checkpoint {path} has format version {version}, expected {FORMAT_VERSION}. "
                "Use the release that wrote it, or another job_dir."
            )
        return content

    def load_variables(self, path: Path, variables: Sequence[tf.Variable]) -> None:
        """Sets the variables.

        Raises:
          ConfigurationError: the checkpoint is of another model.
        """
        try:
            _checkpoint(variables).read(str(path / PREFIX)).assert_consumed()
        except (ValueError, AssertionError, tf.errors.OpError) as error:
            first_line = str(error).strip().splitlines()[0]
            raise ConfigurationError(
                f"The checkpoint {path} does not fit this model: {first_line}. "
                "Use the model it was written with, or another job_dir."
            ) from error

    def _all(self) -> list[Path]:
        return sorted(self._directory.glob("step-*"))


def _checkpoint(variables: Sequence[tf.Variable]) -> tf.train.Checkpoint:
    return tf.train.Checkpoint(variables=list(variables))
