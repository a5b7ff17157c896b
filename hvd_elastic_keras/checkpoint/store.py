"""Checkpoints on disk: a TensorFlow checkpoint of the variables and a versioned JSON file.

    <job_dir>/checkpoints/step-00000120/state.json
    <job_dir>/checkpoints/step-00000120/variables.index, variables.data-…

A checkpoint is written under a temporary name and renamed when it is complete, so that whatever
has its final name is whole.
"""

from __future__ import annotations

import itertools
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
            content = {
                "version": FORMAT_VERSION,
                "step": step,
                "variables": _forms(variables),
                "bytes": {file.name: file.stat().st_size for file in temporary.iterdir()},
                **state,
            }
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
        """Reads the JSON part, and checks that the other files are whole.

        Raises:
          ConfigurationError: the checkpoint is damaged or of another format version.
        """
        try:
            content: dict[str, Any] = json.loads((path / STATE).read_text())
            version = content["version"]
            sizes: dict[str, int] = content.get("bytes", {})  # older checkpoints have none
            found = {name: (path / name).stat().st_size for name in sizes}
        except (OSError, ValueError, KeyError) as error:
            raise _damaged(path, str(error)) from error
        for name, size in sizes.items():
            if found[name] != size:
                raise _damaged(path, f"{name} has {found[name]:,} bytes, expected {size:,}")
        if version != FORMAT_VERSION:
            raise ConfigurationError(
                f"The checkpoint {path} has format version {version}, expected {FORMAT_VERSION}. "
                "Use the release that wrote it, or another job_dir."
            )
        return content

    def check_variables(
        self, path: Path, state: dict[str, Any], variables: Sequence[tf.Variable]
    ) -> None:
        """Compares the variables with those that were saved; `state` is that of `load_state`.

        Raises:
          ConfigurationError: the checkpoint is of another model.
        """
        mine = _forms(variables)
        saved = state.get("variables", mine)  # older checkpoints do not say
        if saved == mine:
            return
        pairs = itertools.zip_longest(saved, mine)
        number, (theirs, ours) = next(
            (i, pair) for i, pair in enumerate(pairs) if len(set(pair)) > 1
        )
        raise _other_model(
            path,
            f"it holds {len(saved)} variables, and there are {len(mine)} now; the first that "
            f"differs is number {number}: {theirs or 'none'} there, {ours or 'none'} now",
        )

    def load_variables(
        self, path: Path, state: dict[str, Any], variables: Sequence[tf.Variable]
    ) -> None:
        """Sets the variables; `state` is that of `load_state`.

        Raises:
          ConfigurationError: the checkpoint is damaged, or of another model.
        """
        try:
            _checkpoint(variables).read(str(path / PREFIX)).assert_consumed()
        except (ValueError, IndexError, AssertionError, tf.errors.OpError) as error:
            why = str(error).strip().splitlines()[0]
            fits = "variables" in state  # or it would have been refused by `check_variables`
            raise _damaged(path, why) if fits else _other_model(path, why) from error

    def _all(self) -> list[Path]:
        return sorted(self._directory.glob("step-*"))


def _forms(variables: Sequence[tf.Variable]) -> list[str]:
    """Type and shape of each variable, such as "float32 [3, 3, 1, 16]"."""
    return [f"{v.dtype.name} {v.shape.as_list()}" for v in variables]


def _damaged(path: Path, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"The checkpoint {path} is damaged ({why}). Remove that directory to use the one before it."
    )


def _other_model(path: Path, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"The checkpoint {path} is of another model or optimizer: {why}. Use those it was written "
        "with, or another job_dir."
    )


def _checkpoint(variables: Sequence[tf.Variable]) -> tf.train.Checkpoint:
    return tf.train.Checkpoint(variables=list(variables))
