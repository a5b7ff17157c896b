"""Fixtures of tests with real processes."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.harness import alone, warm_python
from tests.harness.alone import Once
from tests.harness.fit_job import FIT_SCRIPT, FitResult
from tests.harness.fit_scenario import Scenario
from tests.harness.job import FAULT_MODEL, read_weights

LIMIT_S = 300
"""Time limit of a test without its own limit."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks all tests in this directory.

    They start real processes. The start alone may take a minute.
    """
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.integration)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(LIMIT_S))


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """Returns a function that fills a directory at its first call, even with pytest-xdist.

    It takes the directory's name and a function that fills it, and returns the directory.
    """
    shared = tmp_path_factory.getbasetemp()
    if shared.name.startswith("popen-"):
        shared = shared.parent

    def filled(name: str, fill: Callable[[Path], object]) -> Path:
        directory = shared / "once" / name
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done = directory / "done"
            if not done.exists():
                fill(directory)
                done.touch()
        return directory

    return filled


@pytest.fixture(scope="session")
def expected_weights(once: Once, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """Returns the weights of one process without a launcher."""

    def train(directory: Path) -> None:
        alone.train(FAULT_MODEL, directory / "alone", micro_batch_size=8, epochs=3)

    model = once("fault_model", train) / "alone" / "model.keras"
    return read_weights(model, tmp_path_factory.mktemp("expected"))


@pytest.fixture(scope="session")
def fit_alone(once: Once) -> Callable[[Scenario], FitResult]:
    """Returns the results of scenarios in one process without a launcher."""

    def result(scenario: Scenario) -> FitResult:
        def train(directory: Path) -> None:
            warm_python.run(FIT_SCRIPT, directory, scenario.reference, log=directory / "log")

        directory = once(f"fit_alone_{scenario}", train)
        return FitResult.read(scenario.directory_in(directory), "alone")

    return result
