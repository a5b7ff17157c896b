"""A job whose launcher uses TLS loses a worker and its launcher, and continues like any other."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np

from hvd_elastic_keras.common import files
from hvd_elastic_keras.master.http import certificate
from tests.harness.faults import Fault
from tests.harness.job import Job, assert_same_weights


def test_a_killed_worker_and_a_killed_launcher_change_nothing(
    tmp_path: Path, expected_weights: dict[str, np.ndarray]
) -> None:
    gate = Fault("gate", "train", 0, step=10, action="wait")
    with Job(tmp_path, "--num_workers=2", "--max_restarts=0", "--tls", plan=[gate]) as job:
        job.wait_for_fault("gate")
        fingerprint = files.read_endpoint(job.job_dir).fingerprint
        assert fingerprint == certificate.fingerprint_in(job.job_dir) != ""
        assert "w1" in job.ctl("status")
        root, other = job.wait_for_round(2)["members"]
        job.kill_launcher()
        job.start_launcher("--resume")
        assert job.wait_for("master_restarted")["workers"] == ["w0", "w1"]
        assert files.read_endpoint(job.job_dir).fingerprint == fingerprint
        job.signal(other, signal.SIGKILL)
        job.plan.open_gate("gate")
        assert job.wait_for_round(1)["members"] == [root]
        job.finish()
        assert "Traceback" not in job.output
        assert not (job.job_dir / files.CERTIFICATE).exists()
        assert_same_weights(job.weights(), expected_weights)
