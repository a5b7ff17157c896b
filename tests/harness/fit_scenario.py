"""Trainings written beside their tests: functions of a test module that worker processes run.

    @scenario(plain=True)
    def two_epochs(script: Script) -> None:
        script.fit(classifier(FaultPoint()), **arrays(epochs=2))

A scenario is a user's script; `fit_script.py` runs it in a worker, `FitJob` in a job.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.harness.job import REPOSITORY

if TYPE_CHECKING:
    from tests.harness.recorded_fit import Script  # needs TensorFlow


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A function that trains, and whether plain `fit` has the same result.

    Attributes:
      train: makes a compiled model and trains it by `Script.fit`, once or several times.
      plain: whether `fit` without `ElasticCallback` has the same result. It has not with batch
        normalisation or dropout: their random numbers differ.
    """

    train: Callable[[Script], None]
    plain: bool

    def __str__(self) -> str:
        return self.train.__name__

    @property
    def reference(self) -> str:
        """Names the scenario for a worker: `tests/integration/test_fit.py::eager`."""
        return f"{self._file.relative_to(REPOSITORY)}::{self}"

    def directory_in(self, directory: Path) -> Path:
        """Returns the directory for the scenario's results."""
        return directory / self._file.stem / str(self)

    @property
    def _file(self) -> Path:
        return Path(inspect.getfile(self.train)).resolve()


def scenario(*, plain: bool) -> Callable[[Callable[[Script], None]], Scenario]:
    """Turns a function of a test module into a scenario."""
    return lambda train: Scenario(train, plain)


def find_scenario(reference: str) -> Scenario:
    """Returns the scenario with this reference."""
    file, name = reference.split("::")
    module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
    found = getattr(module, name)
    if not isinstance(found, Scenario):
        raise TypeError(f"{reference} is {found!r}, expected a function with @scenario.")
    return found
