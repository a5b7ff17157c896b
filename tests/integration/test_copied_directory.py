"""The directory of a running job is copied, and a launcher is started in the copy."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import numpy as np
import pytest

from tests.harness.faults import Fault
from tests.harness.job import Job, assert_same_weights

GATE = Fault("gate", "train", 0, step=10, action="wait")
FLAGS = ("--num_workers=2", "--audit")


def assert_private(job_dir: Path) -> None:
    """Asserts that only the user can read locks and the files that launchers rely on."""
    names = ["job.lock", "job.id", "job.json", "master.json", "journal", "checkpoints/owner.json"]
    notes = sorted(path.relative_to(job_dir) for path in (job_dir / "workers").iterdir())
    assert [path.name for path in notes] == ["w0.json", "w1.json"]
    modes = {str(n): stat.S_IMODE((job_dir / n).stat().st_mode) for n in (*names, *notes)}
    assert modes == dict.fromkeys(modes, 0o600)
    assert stat.S_IMODE((job_dir / "workers").stat().st_mode) == 0o700


def copied(job: Job, directory: Path) -> Job:
    directory.mkdir()
    shutil.copytree(job.job_dir, directory / "job")
    return Job(directory, *FLAGS, "--resume")


@pytest.mark.parametrize("is_killed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_workers_of_the_original_train_on_and_the_copy_is_a_job_of_its_own(
    tmp_path: Path, expected_weights: dict[str, np.ndarray], is_killed: bool
) -> None:
    with Job(tmp_path, *FLAGS, plan=[GATE]) as job:
        job.wait_for_fault("gate")
        checkpoint = job.job_dir / "checkpoints" / "step-00000008"
        job.wait(lambda: checkpoint.exists() or None, "checkpoint")
        workers = {job.pid_of(worker_id) for worker_id in ("w0", "w1")}
        assert_private(job.job_dir)
        if is_killed:
            job.kill_launcher()
        copy = copied(job, tmp_path / "copy")
        refused = copy.ctl("status", exit_code=2)
        assert f"it is a copy of {job.job_dir}" in refused
        with copy:
            copy.wait_for("worker_started", lambda e: e["worker_id"] == "w2")
            copy.finish()
            assert f"{copy.job_dir} is a copy of {job.job_dir}" in copy.output
            assert "taken over" not in copy.output
            assert len(copy.events("worker_started")) == 4, "two of them are the original's"
            assert copy.events("checkpoint_loaded")[-1]["step"] == 8
            assert_same_weights(copy.weights(), expected_weights)
        assert workers <= {p.pid for p in job.worker_processes()}
        ids = [(d / "job.id").read_text() for d in (job.job_dir, copy.job_dir)]
        assert ids[0] != ids[1]
        if is_killed:
            job.start_launcher("--resume")
            assert job.wait_for("master_restarted")["workers"] == ["w0", "w1"]
        job.plan.open_gate("gate")
        job.finish()
        assert len(job.events("worker_started")) == 2
        assert len(job.events("round_running")) == 1
        job.assert_audited(epochs=3)
        assert_same_weights(job.weights(), expected_weights)
