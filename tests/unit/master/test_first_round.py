"""The first round: its members, the workers waited for, and the messages in the meantime."""

from __future__ import annotations

import pytest

from tests.unit.master.membership_driver import PATIENT, Job, running_job


@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_workers_that_start_together_share_the_first_round(num_workers: int) -> None:
    job = Job(num_workers)
    assert job.launches == [f"w{i}" for i in range(num_workers)]
    job.ready(*job.workers)
    assert job.members == job.workers
    assert job.state.rounds.running is None
    job.running(*job.members)
    assert job.round_number == 1
    assert job.last("round_running")["world_size"] == num_workers
    assert job.worker("w0").seniority == 0


def test_a_warm_worker_waits_for_those_that_are_still_starting() -> None:
    job = Job(2, start_timeout_s=120.0, **PATIENT)
    job.ready("w0")
    job.wait(119.0)
    assert job.members == []
    job.wait(1.0)
    assert job.members == ["w0"]


def test_a_worker_that_starts_later_than_the_time_limit_joins_the_next_round() -> None:
    job = Job(2, start_timeout_s=120.0, **PATIENT)
    job.ready("w0")
    job.wait(120.0)
    job.running("w0")
    job.ready("w1")
    job.resume("w0", "w1", step=3)
    assert job.state.rounds.running is not None
    assert job.state.rounds.running.members == ("w0", "w1")
    assert job.broken_through == 0


def test_who_comes_to_the_entrance_has_joined_also_if_the_journal_has_lost_that() -> None:
    job = Job(2)
    job.joined("w0")
    job.enter("w0", "w1", has_state=False)
    assert job.members == ["w0", "w1"]
    assert job.training_of("w1") == 1


def test_the_first_round_has_no_state_and_later_rounds_have_one() -> None:
    job = running_job(2)
    assert not job.places["w0"].root_has_state
    job.kill("w1")
    job.enter("w0", step=1)
    assert job.places["w0"].root_has_state


def test_a_start_below_min_workers_is_no_waiting_while_workers_are_starting() -> None:
    job = Job(2, min_workers=2, **PATIENT)
    job.ready("w0")
    job.wait(500.0)
    assert job.members == []
    assert job.events("waiting") == []


def test_a_start_in_good_order_says_nothing_of_waiting() -> None:
    """The last worker is warm, but for a moment it has not come to the entrance yet."""
    job = running_job(2, min_workers=2)
    assert job.round_number == 1
    assert job.events("waiting") == []
    assert len(job.said) == 1
