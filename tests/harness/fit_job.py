"""Jobs that run a scenario, and their results."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.harness.faults import Fault
from tests.harness.fit_scenario import Scenario
from tests.harness.job import REPOSITORY, Job

FIT_SCRIPT = REPOSITORY / "tests" / "harness" / "fit_script.py"


@dataclasses.dataclass(frozen=True)
class FitResult:
    """The results that one process wrote at the end of a scenario.

    Attributes:
      weights: all variables of model and optimizer except random seeds, in order, with their names.
      logs: histories, hooks with their logs, evaluations and predictions.
      files: the directory in which its callbacks have written.
    """

    weights: dict[str, np.ndarray]
    logs: dict[str, Any]
    files: Path

    @classmethod
    def read(cls, directory: Path, worker: str) -> FitResult:
        """Reads the result of a worker, or of "alone"."""
        path = directory / worker
        with np.load(path.with_suffix(".npz")) as file:
            weights = dict(file)
        logs = json.loads(path.with_suffix(".json").read_text())
        return cls(weights, logs, directory / "files")


def assert_same_weights(found: FitResult, expected: FitResult, tolerance: float = 1e-5) -> None:
    """Asserts that all variables agree, and that there are some."""
    assert len(found.weights) == len(expected.weights) > 0
    for (name, value), other in zip(found.weights.items(), expected.weights.values(), strict=True):
        np.testing.assert_allclose(value, other, rtol=tolerance, atol=tolerance, err_msg=name)


def assert_same_result(found: FitResult, expected: FitResult, tolerance: float = 1e-5) -> None:
    """Asserts that weights, histories, hooks and logs agree, and that there are some."""
    assert_same_weights(found, expected, tolerance)
    assert expected.logs["histories"]
    for name, value in expected.logs.items():
        assert_same_logs(found.logs[name], value, name, tolerance)


def assert_same_logs(found: Any, expected: Any, where: str, tolerance: float = 1e-5) -> None:
    """Asserts that nested lists and dicts agree; numbers may differ by rounding."""
    assert type(found) is type(expected), where
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key, value in expected.items():
            assert_same_logs(found[key], value, f"{where}[{key!r}]", tolerance)
    elif isinstance(expected, list):
        assert len(found) == len(expected), f"{where}: {found} is not {expected}"
        for index, (value, other) in enumerate(zip(found, expected, strict=True)):
            assert_same_logs(value, other, f"{where}[{index}]", tolerance)
    elif isinstance(expected, float):
        np.testing.assert_allclose(found, expected, tolerance, tolerance, err_msg=where)
    else:
        assert found == expected, where


def gate(step: int, point: str = "train") -> Fault:
    """Returns a fault that holds rank 0 at a step until a late joiner is warm."""
    return Fault("gate", point, 0, step=step, action="wait")


def kill_of_root(point: str, step: int = -1, size: int = 3) -> Fault:
    """Returns a fault that kills rank 0 in a round of `size` workers.

    The late joiner makes three.
    """
    return Fault(f"kill{size}", point, 0, step=step, size=size)


class FitJob(Job):
    """A job that runs one scenario."""

    def __init__(self, directory: Path, scenario: Scenario, *flags: str, plan: list[Fault]) -> None:
        self._results = scenario.directory_in(directory)
        self.files = self._results / "files"
        self.faults = plan
        command = (str(FIT_SCRIPT), str(directory), scenario.reference)
        super().__init__(directory, "--max_restarts=0", *flags, plan=plan, command=command)

    def let_join(self, gate: str, joiner: str = "w2") -> None:
        """Lets a worker join while the others are held at a gate."""
        self.wait_for_fault(gate)
        self.ctl("add", "1")
        self.wait_for("round_opened", lambda e: e["reason"] == f"{joiner} joins")
        self.plan.open_gate(gate)

    def result(self, worker: str) -> FitResult:
        """Returns the result of a worker."""
        return FitResult.read(self._results, worker)

    def finish_with(self, workers: list[str], expected: FitResult, tolerance: float = 1e-5) -> None:
        """Asserts that the job ends well with exactly these workers and the expected result."""
        self.finish()
        assert [f.name for f in self.faults if not self.plan.happened(f.name)] == []
        assert all(e["steps_lost"] == 0 for e in self.events("round_running"))
        assert sorted(p.stem for p in self._results.glob("*.npz")) == sorted(workers)
        for worker in workers:
            assert_same_result(self.result(worker), expected, tolerance)
