"""Which checkpoint a training goes on from, and whether it may."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from hvd_elastic_keras import files
from hvd_elastic_keras.checkpoint.store import CheckpointStore
from hvd_elastic_keras.config import GLOBAL, TrainingConfig
from hvd_elastic_keras.errors import ConfigurationError


@dataclasses.dataclass(frozen=True)
class Origin:
    """What must not change between the run that wrote a checkpoint and the one that reads it.

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
    def of(cls, config: TrainingConfig, num_examples: int) -> Origin:
        """The origin of a training."""
        return cls(
            batch=config.batch,
            batch_size_per_worker=config.batch_size_per_worker,
            global_batch_size=config.global_batch_size,
            micro_batch_size=config.micro_batch_size,
            seed=config.seed,
            num_examples=num_examples,
            drop_remainder=config.drop_remainder,
        )


class CheckpointManager:
    """The checkpoints in one job directory."""

    def __init__(self, job_dir: Path, origin: Origin) -> None:
        self._store = CheckpointStore(job_dir / files.CHECKPOINTS)
        self._origin = dataclasses.asdict(origin)

    def save(self, step: int, variables: Sequence[tf.Variable], run: dict[str, Any]) -> Path:
        """Writes a checkpoint; `run` is the state that is not in variables."""
        return self._store.save(step, variables, {"origin": self._origin, "run": run})

    def check_newest(self, variables: Sequence[tf.Variable]) -> Path | None:
        """The newest checkpoint, if there is one.

        Raises:
          ConfigurationError: this training cannot go on from it.
        """
        found = self._newest_state(variables)
        return found[0] if found else None

    def load_newest(self, variables: Sequence[tf.Variable]) -> tuple[Path, dict[str, Any]] | None:
        """Sets the variables to those of the newest checkpoint and returns the rest of its state.

        Raises:
          ConfigurationError: this training cannot go on from it.
        """
        found = self._newest_state(variables)
        if found is None:
            return None
        path, state = found
        self._store.load_variables(path, state, variables)
        return path, state["run"]

    def _newest_state(self, variables: Sequence[tf.Variable]) -> tuple[Path, dict[str, Any]] | None:
        path = self._store.newest()
        if path is None:
            return None
        state = self._store.load_state(path)
        self._store.check_variables(path, state, variables)
        self._check_origin(path, state["origin"])
        return path, state

    def _check_origin(self, path: Path, found: dict[str, Any]) -> None:
        # Older releases had global batches only, and left nothing out.
        old = {"batch": GLOBAL, "batch_size_per_worker": 0, "drop_remainder": False}
        found = {**old, **found}
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
