"""C code that keeps Python's lock (GIL) stops heartbeats: such a worker is slow, not dead."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

from tests.harness.faults import Fault
from tests.harness.job import Job, assert_same_weights

Weights = dict[str, np.ndarray]
ON_BOTH = [Fault(f"keep{rank}", "train", rank, step=10, action="keep_lock") for rank in (0, 1)]


def wait_until_told(job: Job, *worker_ids: str) -> None:
    """Waits until the launcher has printed it, and the log shows the line of code."""
    for worker_id in worker_ids:
        words = f"{worker_id} has sent no heartbeat for"
        job.wait(lambda words=words: words in job.output or None, words)
        log = job.job_dir / "logs" / f"{worker_id}.log"
        job.wait(lambda log=log: "faults.py" in log.read_text() or None, "the stacks")


def test_nobody_is_evicted_while_code_in_c_keeps_the_lock_on_all_workers(
    tmp_path: Path, expected_weights: Weights
) -> None:
    flags = ("--num_workers=2", "--heartbeat_timeout_s=5")
    with Job(tmp_path, *flags, plan=ON_BOTH) as job:
        wait_until_told(job, "w0", "w1")
        for fault in ON_BOTH:
            job.plan.open_gate(fault.name)
        job.finish()
        assert [e for e in job.events("worker_exited") if e["failed"]] == []
        assert len(job.events("round_running")) == 1
        assert_same_weights(job.weights(), expected_weights)


@pytest.mark.slow
def test_who_keeps_the_lock_and_is_stopped_then_is_evicted_at_once(
    tmp_path: Path, expected_weights: Weights
) -> None:
    flags = ("--num_workers=2", "--heartbeat_timeout_s=5", "--max_restarts=0")
    with Job(tmp_path, *flags, plan=ON_BOTH) as job:
        wait_until_told(job, "w0", "w1")
        stopped, name = job.worker_that_had("keep1"), "keep0"
        job.signal(stopped, signal.SIGSTOP)
        exited = job.wait_for("worker_exited", lambda e: e["worker_id"] == stopped)
        assert exited["cause"].startswith("evicted: no heartbeat for")
        assert "though its process runs" not in exited["cause"]
        job.plan.open_gate(name)
        job.finish()
        assert job.events("round_running")[-1]["world_size"] == 1
        assert_same_weights(job.weights(), expected_weights)
