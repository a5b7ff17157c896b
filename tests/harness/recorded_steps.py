"""Notes the state after every step of a job, and takes each step again in one process.

Two trainings that round differently drift apart, however right each step is. So steps are compared,
not ends. The job notes its state before and after each step. One process without a launcher takes
the step again from the noted state before it. Its result must be the noted state after it.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import keras
import numpy as np

from hvd_elastic_keras import Trainer
from hvd_elastic_keras.data.input.interfaces import LocalBatch
from hvd_elastic_keras.keras_internals.model_variables import unwrapped, variables_of
from hvd_elastic_keras.step import compiled_steps
from hvd_elastic_keras.step.partitioned_step import PartitionedStep
from hvd_elastic_keras.step.step_result import StepResult

DIRECTORY = "HVD_ELASTIC_TEST_RECORD"
KINDS = ("layers", "optimizer")
State = dict[str, list[np.ndarray]]
"""Values of variables by kind."""


class Recorder(keras.callbacks.Callback):
    """Notes the first state and the state after each step, in the directory of the environment."""

    def on_train_begin(self, logs: Any = None) -> None:
        """Notes the state before the first step."""
        self._note()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes the state after a step."""
        self._note()

    def _note(self) -> None:
        directory = Path(os.environ[DIRECTORY])
        path = directory / f"{int(self.model.optimizer.iterations)}.npz"
        if path.exists():  # all workers hold the same state; the first one notes it
            return
        state = state_of(self.model)
        own = directory / f"{os.getpid()}.part"
        with own.open("wb") as file:
            np.savez(file, **{f"{k} {i}": v for k in KINDS for i, v in enumerate(state[k])})
        own.replace(path)


def state_of(model: keras.Model) -> State:
    """Returns the present values of the variables that a step changes."""
    variables = variables_of(model)
    return {k: [unwrapped(v).numpy() for v in getattr(variables, k)] for k in KINDS}


def read_state(directory: Path, step: int) -> State | None:
    """Returns the state after this many steps.

    None if the worker that would have noted it was killed.
    """
    path = directory / f"{step}.npz"
    if not path.exists():
        return None
    with np.load(path) as file:
        return {k: [file[n] for n in file.files if n.startswith(f"{k} ")] for k in KINDS}


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference between two results of one step from the same state.

    Attributes:
      step: number of steps finished before it.
      by_kind: length of the difference / length of the step's change, for weights and batch-norm
        statistics, and for the vectors that the optimizer keeps.
    """

    step: int
    by_kind: dict[str, float]

    @property
    def largest(self) -> float:
        """The largest difference of all kinds."""
        return max(self.by_kind.values())


def difference(step: int, before: State, after: State, other: State) -> Difference:
    """Returns the distance of two states after a step, relative to the step's change."""

    def flat(state: State, kind: str) -> np.ndarray:
        # Leave out counters and rates: they are not vectors, and would hide the vectors.
        vectors = [v.ravel() for v in state[kind] if v.ndim]
        return np.concatenate([np.zeros(0), *vectors])

    found = {}
    for kind in KINDS:
        old, new, of_other = (flat(s, kind) for s in (before, after, other))
        moved = np.linalg.norm(new - old)
        if moved:
            found[kind] = float(np.linalg.norm(of_other - new) / moved)
    return Difference(step, found)


class _ReplayedStep(PartitionedStep):
    """Takes each step from the state that a job has noted before it."""

    directory = Path()
    differences: Sequence[Difference] = ()

    def __call__(
        self, batch: LocalBatch, step: int, stop: bool = False, arrive: Any = None
    ) -> StepResult:
        """Takes the step, and compares the result with the job's."""
        before, noted = (read_state(self.directory, s) for s in (step, step + 1))
        if not self.train or before is None or noted is None:
            return super().__call__(batch, step, stop)
        variables = variables_of(self.model)
        for kind in KINDS:
            for variable, value in zip(getattr(variables, kind), before[kind], strict=True):
                variable.assign(value)
        result = super().__call__(batch, step, stop)
        found = difference(step, before, state_of(self.model), noted)
        type(self).differences = [*self.differences, found]
        return result


def replay(trainer: Trainer, directory: Path) -> list[Difference]:
    """Takes the steps of a job again, each from its own state, and compares the results.

    Args:
      trainer: a trainer of the same training, without a launcher.
      directory: the directory in which `Recorder` has noted the states.
    """

    class Replayed(_ReplayedStep):
        pass

    Replayed.directory = directory
    with mock.patch.object(compiled_steps, "PartitionedStep", Replayed):
        trainer.fit()
    return list(Replayed.differences)
