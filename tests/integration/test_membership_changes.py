"""Workers come and go as they should: no error anywhere, no lost step, same weights."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from tests.harness.faults import Fault
from tests.harness.job import Job, assert_same_weights

Weights = dict[str, np.ndarray]
GATE = Fault("gate", "train", 0, step=10, action="wait")


def finish_without_any_error(job: Job, expected: Weights) -> None:
    """Asserts that the job ends like an uninterrupted run, and that the logs have no error."""
    job.finish()
    assert all(e["steps_lost"] == 0 for e in job.events("round_running"))
    assert [e for e in job.events("worker_exited") if e["failed"]] == []
    for log in (job.job_dir / "logs").glob("*.log"):
        assert "Traceback" not in log.read_text()
        assert not re.search(r"^\S+ \S+ ERROR", log.read_text(), re.MULTILINE)
    assert_same_weights(job.weights(), expected)


def test_a_worker_joins_in_an_epoch_the_root_gets_sigterm_and_ctl_removes_the_least_senior(
    tmp_path: Path, expected_weights: Weights
) -> None:
    steps = {"join": 10, "leave": 13, "remove": 18}
    plan = [Fault(name, "train", 0, step=step, action="wait") for name, step in steps.items()]
    with Job(tmp_path, "--num_workers=2", plan=plan) as job:
        job.wait_for_fault("join")
        assert "starting" in job.ctl("add", "1")
        job.wait_for("round_opened", lambda e: e["reason"] == "w2 joins")
        job.plan.open_gate("join")
        joined = job.wait_for_round(3)
        assert joined["step"] == 11  # all workers finished the step that was running

        job.wait_for_fault("leave")
        root, *others = joined["members"]
        job.signal(root, signal.SIGTERM)
        job.wait_for("round_opened", lambda e: "SIGTERM" in e["reason"])
        job.plan.open_gate("leave")
        left = job.wait_for("worker_exited", lambda e: e["worker_id"] == root)
        assert left["cause"] == "left: SIGTERM"
        without_root = job.wait_for_round(2, after=joined["round"])
        assert without_root["members"] == others

        job.wait_for_fault("remove")
        status = job.ctl("status")
        assert all(member in status for member in others)
        assert job.ctl("remove", "1") == f"{others[-1]} will leave after the current step\n"
        job.plan.open_gate("remove")
        last = job.wait_for_round(1, after=without_root["round"])
        assert last["members"] == others[:-1]
        assert [e["round"] for e in job.events("round_running")] == [1, 2, 3, 4]
        finish_without_any_error(job, expected_weights)


def test_a_spare_takes_over_when_a_member_dies(tmp_path: Path) -> None:
    kill = Fault("kill", "train", 1, step=12)
    # Two micro-batches occupy two workers. The third worker can only wait.
    flags = ("--num_workers=3", "--micro_batch_size=32", "--max_restarts=1")
    with Job(tmp_path, *flags, plan=[GATE, kill]) as job:
        job.wait_for_fault("gate")
        job.wait(lambda: "waits as a spare" in job.output or None, "spare")
        assert "2 micro-batches of 32; starting 3 workers, of which 1 will wait as a spare" in (
            job.output
        )
        members = job.wait_for_round(2)["members"]
        (spare,) = {"w0", "w1", "w2"} - set(members)
        assert f"{spare} waits as a spare: a batch is cut into 2 micro-batches" in job.output
        assert re.search(rf"^{spare} +spare ", job.ctl("status"), re.MULTILINE)
        job.plan.open_gate("gate")
        taken_over = job.wait_for_round(2, after=1)
        assert taken_over["members"] == [members[0], spare]
        assert taken_over["reason"] == f"{members[1]} was killed by SIGKILL; {spare} joins"
        assert taken_over["steps_lost"] == 0
        job.finish()
        assert job.plan.happened("kill")
        assert len(job.events("round_running")) == 2
        # The spare needs no start-up. The worker started in place of the dead one comes too late.
        after = [(e["event"], e.get("worker_id")) for e in job.events()]
        after = after[after.index(("worker_started", "w3")) :]
        assert ("round_running", None) in after
        if ("worker_ready", "w3") in after:
            assert after.index(("round_running", None)) < after.index(("worker_ready", "w3"))


@pytest.mark.slow
def test_a_job_below_min_workers_waits_and_goes_on_with_a_replacement(
    tmp_path: Path, expected_weights: Weights
) -> None:
    kill = Fault("kill", "train", 1, step=9)
    with Job(tmp_path, "--num_workers=2", "--min_workers=2", plan=[kill]) as job:
        waiting = job.wait_for("waiting")
        assert (waiting["workers"], waiting["min_workers"]) == (1, 2)
        resumed = job.wait_for_round(2, after=1)
        assert resumed["steps_lost"] == 0
        assert "waiting: 1 of at least 2 workers are here" in job.output
        job.finish()
        assert_same_weights(job.weights(), expected_weights)


@pytest.mark.slow
def test_a_launcher_that_was_suspended_blames_nobody(
    tmp_path: Path, expected_weights: Weights
) -> None:
    with Job(tmp_path, "--num_workers=2", "--heartbeat_timeout_s=3", plan=[GATE]) as job:
        job.wait_for_fault("gate")
        job.process.send_signal(signal.SIGSTOP)
        time.sleep(7.0)  # the pause: more than twice the time that the launcher waits for workers
        job.process.send_signal(signal.SIGCONT)
        job.wait(lambda: "launcher stood still for 7 s" in job.output or None, "line of the pause")
        job.plan.open_gate("gate")
        finish_without_any_error(job, expected_weights)
        assert len(job.events("round_running")) == 1


@pytest.mark.slow
def test_who_hangs_outside_of_a_step_is_told_and_replaced(
    tmp_path: Path, expected_weights: Weights
) -> None:
    hang = Fault("hang", "save", 0, action="wait")
    with Job(tmp_path, "--num_workers=2", "--stall_timeout_s=5", plan=[hang]) as job:
        stalled = job.wait_for("worker_stalled")
        evicted = job.wait_for("worker_exited")
        assert evicted["worker_id"] == stalled["worker_id"]
        assert "for which the others wait, within 5 s" in evicted["cause"]
        job.finish()
        assert f"{stalled['worker_id']} has not come to step 24, for which the others" in job.output
        assert all(e["steps_lost"] == 0 for e in job.events("round_running"))
        assert_same_weights(job.weights(), expected_weights)


def test_a_worker_that_hangs_inside_of_its_step_is_found_and_evicted(
    tmp_path: Path, expected_weights: Weights
) -> None:
    hang = Fault("hang", "train", 1, step=3, action="wait")
    flags = ("--num_workers=2", "--stall_timeout_s=10", "--max_restarts=0")
    with Job(tmp_path, *flags, plan=[hang]) as job:
        job.wait_for_fault("hang")
        worker = job.worker_that_had("hang")
        evicted = job.wait_for("worker_exited", lambda e: e["worker_id"] == worker)
        assert "has not computed its part of step 3, for which the others wait" in evicted["cause"]
        job.finish()
        assert "the others wait for this worker" in (text := log_of(job, worker))
        assert "tests/harness/faults.py" in text[text.index("the others wait") :]
        assert all(e["steps_lost"] == 0 for e in job.events("round_running"))
        assert_same_weights(job.weights(), expected_weights)


def log_of(job: Job, worker_id: str) -> str:
    return (job.job_dir / "logs" / f"{worker_id}.log").read_text()


def test_a_stopped_process_is_evicted_and_replaced(
    tmp_path: Path, expected_weights: Weights
) -> None:
    freeze = Fault("freeze", "train", 0, step=9, action="SIGSTOP")
    with Job(tmp_path, "--num_workers=2", "--heartbeat_timeout_s=3", plan=[freeze]) as job:
        evicted = job.wait_for("worker_exited")
        assert "no heartbeat" in evicted["cause"]
        job.finish()
        assert all(e["steps_lost"] == 0 for e in job.events("round_running"))
        assert_same_weights(job.weights(), expected_weights)
