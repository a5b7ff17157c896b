"""Fixtures of tests with real processes."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.harness import alone, warm_python
from tests.harness.fit_job import FIT_SCRIPT, FitResult
from tests.harness.fit_scenario import Scenario, scenarios_of
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
def expected_weights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """Returns the weights of one process without a launcher.

    It trains once, even with pytest-xdist.
    """
    shared = tmp_path_factory.getbasetemp()
    if shared.name.startswith("popen-"):
        shared = shared.parent
    model = shared / "alone" / "model.keras"
    with (shared / "alone.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not model.exists():
            alone.train(FAULT_MODEL, model.parent, micro_batch_size=8, epochs=3)
    return read_weights(model, tmp_path_factory.mktemp("expected"))


def _references(session: pytest.Session) -> dict[str, None]:
    """Returns the references of the scenarios in all test modules of this session, each once."""
    modules = dict.fromkeys(i.module for i in session.items if isinstance(i, pytest.Function))
    return dict.fromkeys(s.reference for module in modules for s in scenarios_of(module))


@pytest.fixture(scope="session")
def fit_alone(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Scenario], FitResult]:
    """Returns the results of scenarios without a launcher.

    One process trains the scenarios of all test modules.
    """
    shared = tmp_path_factory.getbasetemp()
    if shared.name.startswith("popen-"):
        shared = shared.parent
    directory = shared / "fit_alone"
    with (shared / "fit_alone.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            references = _references(request.session)
            warm_python.run(FIT_SCRIPT, directory, *references, log=shared / "fit_alone.log")
    return lambda scenario: FitResult.read(scenario.directory_in(directory), "alone")
