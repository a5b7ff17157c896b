"""The example of a study whose trials are elastic jobs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.job import REPOSITORY, Job

optuna = pytest.importorskip("optuna")

EXAMPLE = REPOSITORY / "docs" / "examples" / "tuning.py"


class Study(Job):
    """The example study. The job is the one of the first trial."""

    def __init__(self, directory: Path, trials: int, epochs: int) -> None:
        super().__init__(directory)
        self.directory = directory / "tuning"
        self.job_dir = self.directory / "trial-0"
        self._study = (f"--trials={trials}", f"--epochs={epochs}")

    def start_launcher(self, *more_flags: str) -> None:
        """Starts the study."""
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(EXAMPLE), f"--directory={self.directory}", *self._study],
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def values(self) -> list[float]:
        """Waits for the end; returns the values of all trials."""
        assert self.process.wait(3 * self.limit_s) == 0, self.report()
        study = optuna.load_study(
            study_name="digits", storage=f"sqlite:///{self.directory}/study.db"
        )
        return [trial.value for trial in study.trials]


@pytest.mark.slow
def test_a_killed_worker_does_not_change_a_trial_and_the_study_goes_on(tmp_path: Path) -> None:
    for name in ("calm", "killed"):
        (tmp_path / name).mkdir()
    with Study(tmp_path / "calm", trials=1, epochs=40) as calm:
        expected = calm.values()

    with Study(tmp_path / "killed", trials=1, epochs=40) as study:
        study.wait_for("epoch_end")
        os.kill(study.pid_of("w0"), signal.SIGKILL)
        found = study.values()
        assert any("SIGKILL" in e["cause"] for e in study.events("worker_exited"))
    assert found == expected
    assert len(found) == 1

    with Study(tmp_path / "killed", trials=1, epochs=1) as again:
        first, second = again.values()
        assert (again.directory / "trial-1" / "events.jsonl").exists()
    assert first == expected[0]
    assert second != first
