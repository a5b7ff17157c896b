"""Fixtures of tests with real processes."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.harness.fit_job import FIT_CASES, FIT_SCRIPT, FitResult
from tests.harness.job import FAULT_MODEL, REPOSITORY, read_weights

ALONE = f"""
from hvd_elastic_keras import Trainer, TrainingConfig
from hvd_elastic_keras.training.model_module import ModelModule

module = ModelModule({str(FAULT_MODEL)!r}, config=None, seed=0, data_dir="")
Trainer(
    module.model(),
    module.dataset("train"),
    validation=module.dataset("validation"),
    config=TrainingConfig(global_batch_size=64, micro_batch_size=8, epochs=3),
    job_dir={{job_dir!r}},
).fit()
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this directory starts real processes."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.integration)


@pytest.fixture(scope="session")
def expected_weights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """What one process without any launcher ends with. Trained once, also with pytest-xdist."""
    shared = tmp_path_factory.getbasetemp()
    if shared.name.startswith("popen-"):
        shared = shared.parent
    model = shared / "alone" / "model.keras"
    with (shared / "alone.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not model.exists():
            subprocess.run(
                [sys.executable, "-c", ALONE.format(job_dir=str(model.parent))],
                cwd=REPOSITORY,
                check=True,
                timeout=100,
            )
    return read_weights(model, tmp_path_factory.mktemp("expected"))


@pytest.fixture(scope="session")
def fit_alone_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of one process without any launcher, for all cases of `fit_cases.py`."""
    shared = tmp_path_factory.getbasetemp()
    if shared.name.startswith("popen-"):
        shared = shared.parent
    directory = shared / "fit_alone"
    with (shared / "fit_alone.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            subprocess.run(
                [sys.executable, str(FIT_SCRIPT), str(directory), *FIT_CASES],
                cwd=REPOSITORY,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
                check=False,  # a case that fails shows in its own tests
                timeout=100,
            )
    return directory


@pytest.fixture
def fit_alone(fit_alone_dir: Path) -> Callable[[str], FitResult]:
    """The result of one process for a case."""
    return lambda case: FitResult.read(fit_alone_dir / case, "alone")
