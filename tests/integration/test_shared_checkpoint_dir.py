"""Two jobs get the same directory for their checkpoints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.harness.faults import Fault
from tests.harness.job import LIMIT_S, Job, assert_same_weights

GATE = Fault("gate", "train", 0, step=10, action="wait")


def directory(parent: Path, name: str) -> Path:
    (parent / name).mkdir()
    return parent / name


@pytest.mark.parametrize("scheme", ["", pytest.param("file://", marks=pytest.mark.slow)])
def test_the_second_one_is_refused_as_long_as_the_first_runs_and_goes_on_from_it_afterwards(
    tmp_path: Path, expected_weights: dict[str, np.ndarray], scheme: str
) -> None:
    flags = ("--num_workers=2", f"--checkpoint_dir={scheme}{tmp_path}/shared")
    with Job(tmp_path, *flags, "--audit", plan=[GATE]) as job:
        job.wait_for_fault("gate")
        if not scheme:  # then only the workers show that the job is alive
            job.kill_launcher()
        with Job(directory(tmp_path, "second"), *flags) as second:
            assert second.process.wait(LIMIT_S) == 2
            assert f"are those of the job of {job.job_dir} on" in second.output
            assert "Give another --checkpoint_dir" in second.output
            assert second.events("round_running") == []
            assert second.events("checkpoint_loaded") == []
        if not scheme:
            job.start_launcher("--resume")
            job.wait_for("master_restarted")
        job.plan.open_gate("gate")
        job.finish()
        assert len(job.events("worker_started")) == 2
        job.assert_audited(epochs=3)
        assert_same_weights(job.weights(), expected_weights)
    with Job(directory(tmp_path, "third"), *flags) as third:
        third.finish()
        assert third.events("checkpoint_loaded")[0]["step"] == 24, "as of a directory of its own"
        assert_same_weights(third.weights(), expected_weights)
