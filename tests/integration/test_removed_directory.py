"""Somebody removes the directory of a job that trains."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.harness.faults import Fault
from tests.harness.job import Job, assert_same_weights


@pytest.mark.slow
def test_the_training_goes_on_and_its_result_is_there(
    tmp_path: Path, expected_weights: dict[str, np.ndarray]
) -> None:
    gate = Fault("gate", "train", 0, step=10, action="wait")
    with Job(tmp_path, "--num_workers=2", plan=[gate]) as job:
        job.wait_for_fault("gate")
        # At once: a launcher that looks before all is gone would write there again.
        shutil.rmtree(job.job_dir.rename(tmp_path / "removed"))
        job.wait(lambda: "was removed" in job.output or None, "line about it")
        assert "w1" in job.ctl("status")
        job.plan.open_gate("gate")
        job.finish()
        assert job.output.count("was removed") == 1
        assert "Traceback" not in job.output
        assert_same_weights(job.weights(), expected_weights)
