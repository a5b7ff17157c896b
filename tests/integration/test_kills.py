"""SIGKILL at exact moments: training continues in the same processes, to the same weights."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

from tests.harness.faults import Fault
from tests.harness.job import SMALL, Job, assert_same_weights

Weights = dict[str, np.ndarray]


def finish_and_compare(job: Job, expected: Weights, faults: list[Fault]) -> None:
    """Asserts a good end: all faults have happened, no step was lost, and the weights are right."""
    job.finish()
    assert all(job.plan.happened(f.name) for f in faults)
    assert all(e["steps_lost"] == 0 for e in job.events("round_running"))
    assert_same_weights(job.weights(), expected)


def assert_survivors_went_on(job: Job, num_survivors: int) -> None:
    """Asserts that the members after the failure are processes of the first round."""
    first, second, *_ = job.events("round_running")
    assert set(second["members"]) < set(first["members"])
    assert len(second["members"]) == num_survivors


def test_goes_on_after_kills_of_rank_0_within_a_step_in_an_evaluation_and_while_results_are_saved(
    tmp_path: Path, expected_weights: Weights
) -> None:
    plan = [
        Fault("step", "train", 0, step=5, size=4),
        Fault("evaluation", "evaluate", 0, step=8, size=3),
        Fault("save", "save", 0, size=2),
    ]
    with Job(tmp_path, "--num_workers=4", "--max_restarts=0", plan=plan) as job:
        finish_and_compare(job, expected_weights, plan)
        members = job.events("round_running")[0]["members"]
        rounds = [e["members"] for e in job.events("round_running")]
        assert rounds[:3] == [members, members[1:], members[2:]], "the survivors go on"
        exits = [e["cause"] for e in job.events("worker_exited")]
        assert exits.count("was killed by SIGKILL") == 3


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_goes_on_after_a_kill_in_the_middle_of_a_step(
    rank: int, tmp_path: Path, expected_weights: Weights
) -> None:
    plan = [Fault("kill", "train", rank, step=5)]
    with Job(tmp_path, "--num_workers=3", "--max_restarts=0", plan=plan) as job:
        finish_and_compare(job, expected_weights, plan)
        assert_survivors_went_on(job, 2)
        exits = [e["cause"] for e in job.events("worker_exited")]
        assert exits.count("was killed by SIGKILL") == 1


@pytest.mark.slow
def test_goes_on_after_two_kills_in_the_same_step(
    tmp_path: Path, expected_weights: Weights
) -> None:
    plan = [Fault("root", "train", 0, step=9), Fault("other", "train", 2, step=9)]
    with Job(tmp_path, "--num_workers=4", "--max_restarts=0", plan=plan) as job:
        finish_and_compare(job, expected_weights, plan)
        assert job.events("round_running")[-1]["world_size"] == 2


def test_goes_on_after_a_kill_during_the_recovery_from_another_kill(
    tmp_path: Path, expected_weights: Weights
) -> None:
    plan = [Fault("first", "train", 1, step=6), Fault("second", "init", 1, round=2)]
    with Job(tmp_path, "--num_workers=4", "--max_restarts=0", plan=plan) as job:
        finish_and_compare(job, expected_weights, plan)
        sizes = [e["world_size"] for e in job.events("round_running")]
        assert sizes == [4, 2]


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_goes_on_after_a_kill_during_the_first_sync(
    rank: int, tmp_path: Path, expected_weights: Weights
) -> None:
    plan = [Fault("kill", "sync", rank, round=1)]
    with Job(tmp_path, "--num_workers=3", "--max_restarts=0", plan=plan) as job:
        finish_and_compare(job, expected_weights, plan)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 2], ids=["root", "joiner"])
def test_goes_on_after_a_kill_while_a_joiner_is_brought_up_to_date(
    rank: int, tmp_path: Path, expected_weights: Weights
) -> None:
    plan = [
        Fault("gate", "train", 0, step=10, action="wait"),
        Fault("kill", "sync", rank, size=3),
    ]
    # Start with two workers, so that the first sync has another size than the joiner's.
    with Job(tmp_path, "--num_workers=2", "--max_restarts=0", plan=plan) as job:
        job.wait_for_fault("gate")
        job.ctl("add", "1")
        job.wait_for("worker_ready", lambda e: e["worker_id"] == "w2")
        job.plan.open_gate("gate")
        finish_and_compare(job, expected_weights, plan)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        Fault("evaluation", "evaluate", 0, step=8),
        Fault("last_step_of_an_epoch", "train", 0, step=7),
        Fault("last_step", "train", 0, step=23),
        Fault("save", "save", 0),
    ],
    ids=lambda fault: fault.name,
)
def test_goes_on_after_a_kill_at_a_delicate_moment(
    fault: Fault, tmp_path: Path, expected_weights: Weights
) -> None:
    with Job(tmp_path, "--num_workers=2", "--max_restarts=0", plan=[fault]) as job:
        finish_and_compare(job, expected_weights, [fault])


@pytest.mark.slow
def test_goes_on_when_all_workers_but_one_are_killed(
    tmp_path: Path, expected_weights: Weights
) -> None:
    plan = [Fault(f"kill{rank}", "train", rank, step=6) for rank in (0, 1, 2)]
    with Job(tmp_path, "--num_workers=4", "--max_restarts=0", plan=plan) as job:
        finish_and_compare(job, expected_weights, plan)
        assert job.events("round_running")[-1]["world_size"] == 1


HANGS_ON_IMPORT = """
import signal
from tests.harness.fault_model import *  # noqa: F403
from tests.harness.fault_model import worker_id

if worker_id() not in ("alone", "w0", "w1"):
    signal.pause()
"""


def test_newcomers_that_are_killed_while_they_start_do_not_end_the_training(
    tmp_path: Path, expected_weights: Weights
) -> None:
    model = tmp_path / "model.py"
    model.write_text(HANGS_ON_IMPORT)
    plan = [Fault("gate", "train", 0, step=10, action="wait")]
    command = (f"--model={model}", *SMALL)
    with Job(tmp_path, "--num_workers=2", "--max_restarts=6", plan=plan, command=command) as job:
        job.wait_for_fault("gate")
        job.ctl("add", "3")
        for number in range(2, 11):
            job.signal(f"w{number}", signal.SIGKILL)
        job.wait(lambda: job.output.count("no restart is left of 6") == 3 or None, "all are lost")
        assert {e["worker_id"] for e in job.events("worker_ready")} == {"w0", "w1"}
        job.plan.open_gate("gate")
        finish_and_compare(job, expected_weights, plan)
        assert len(job.events("round_running")) == 1
