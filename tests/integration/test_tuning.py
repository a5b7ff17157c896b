"""The example of a study whose trials are elastic jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.job import REPOSITORY, Job

optuna = pytest.importorskip("optuna")

EXAMPLE = REPOSITORY / "docs" / "examples" / "tuning.py"
pytestmark = pytest.mark.timeout(300)


class Study(Job):
    """The example; its job is that of the first trial."""

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
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def values(self) -> list[float]:
        """Of all trials, when they are over."""
        assert self.process.wait(3 * self.limit_s) == 0, self.report()
        study = optuna.load_study(
            study_name="digits", storage=f"sqlite:///{self.directory}/study.db"
        )
        return [trial.value for trial in study.trials]


def test_a_trial_whose_worker_is_killed_has_the_same_value(tmp_path: Path) -> None:
    (tmp_path / "calm").mkdir()
    (tmp_path / "killed").mkdir()
    with Study(tmp_path / "calm", trials=1, epochs=40) as calm:
        expected = calm.values()

    with Study(tmp_path / "killed", trials=1, epochs=40) as study:
        study.wait_for("epoch_end")
        os.kill(study.pid_of("w0"), 9)
        found = study.values()
        assert any("SIGKILL" in e["cause"] for e in study.events("worker_exited"))

    assert found == expected
    assert len(found) == 1


def test_a_study_goes_on_where_it_was(tmp_path: Path) -> None:
    for trials in (1, 2):
        with Study(tmp_path, trials=1, epochs=1) as study:
            assert len(study.values()) == trials
            events = (study.directory / f"trial-{trials - 1}" / "events.jsonl").read_text()
    assert json.loads(events.splitlines()[-1])["event"] == "job_finished"
