"""Slurm takes single workers of a job for more urgent jobs, and gives them back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.harness import slurm
from tests.harness.faults import Fault
from tests.harness.job import assert_same_weights

pytestmark = pytest.mark.skipif(bool(slurm.obstacle()), reason=slurm.obstacle() or "there is Slurm")


def gate(name: str, step: int) -> Fault:
    """Returns a fault that holds rank 0 until the test opens the gate."""
    return Fault(name, "train", rank=0, step=step, action="wait")


def test_a_task_that_is_preempted_leaves_and_comes_back_and_nothing_is_lost(
    tmp_path: Path, expected_weights: dict[str, np.ndarray]
) -> None:
    plan = [gate("start", 4), gate("full", 10), gate("back", 16)]
    flags = ("--audit", "--max_restarts=0")
    with (
        slurm.Cluster(tmp_path / "slurm", cpus=4) as cluster,
        slurm.SlurmJob(cluster, tmp_path, *flags, plan=plan) as job,
    ):
        job.wait(lambda: len(job.events("worker_ready")) == 2 or None, "two workers")
        job.wait_for_fault("start")
        job.plan.open_gate("start")
        job.wait_for_round(2)
        job.wait_for_fault("full")
        done = tmp_path / "done"
        wait = f"until [ -e {done} ]; do sleep 0.1; done"
        cluster.submit("--partition=urgent", "--cpus-per-task=2", f"--wrap={wait}")
        revoked = job.wait_for("slots_revoked")
        job.plan.open_gate("full")
        after = job.wait_for_round(1, job.events("round_running")[-1]["round"])
        assert after["reason"] == f"{revoked['workers'][0]} leaves (SIGTERM)"
        job.wait_for_fault("back")
        cluster.wait_for_queue("elastic-worker PENDING", "elastic-worker RUNNING", "wrap RUNNING")
        done.touch()
        job.wait(lambda: len(job.events("worker_ready")) == 3 or None, "the task is back")
        job.plan.open_gate("back")
        job.wait_for_round(2, after["round"])
        job.finish()
        assert [e["failed"] for e in job.events("worker_exited")] == [False] * 3
        assert all(e["steps_lost"] == 0 for e in job.events("round_running"))
        assert_same_weights(job.weights(), expected_weights)
        job.assert_audited(3)
        cluster.wait_for_queue()
