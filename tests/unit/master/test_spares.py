"""The number of members of a round, and the warm workers beyond that number: spares."""

from __future__ import annotations

import pytest

from hvd_elastic_keras.common import control
from hvd_elastic_keras.master.machine.change_request import Change, plan_change
from tests.unit.master.membership_driver import Job, running_job


@pytest.mark.parametrize(
    ("num_workers", "max_workers", "micro_batches", "size"),
    [(4, 8, 8, 4), (4, 8, 2, 2), (4, 4, 8, 4), (3, 3, 1, 1)],
)
def test_a_round_has_no_more_members_than_micro_batches_or_max_workers(
    num_workers: int, max_workers: int, micro_batches: int, size: int
) -> None:
    job = running_job(num_workers, micro_batches, max_workers=max_workers)
    assert len(job.members) == size
    assert len(job.spares) == num_workers - size


def test_where_the_batch_grows_micro_batches_limit_nothing_and_each_has_all_of_its_own() -> None:
    job = Job(4, micro_batches=2, max_workers=4)
    job.batch_grows = True
    job.start()
    job.add_ready("w4")
    assert job.last("round_running")["micro_batches"] == [2, 2, 2, 2]
    assert any("start, 2+2+2+2 micro-batches" in line for line in job.said)
    told = [line for line in job.said if "spare" in line]
    assert told == ["w4 waits as a spare: 4 workers train already (--max_workers)"]


def test_a_spare_takes_over_after_a_death() -> None:
    job = running_job(3, micro_batches=2)
    assert job.members == ["w0", "w1"]
    job.kill("w1")
    job.resume("w0", "w2", step=7)
    assert job.round_number == 2
    assert job.members == ["w0", "w2"]


def test_by_default_a_worker_beyond_the_micro_batches_may_be_added_as_a_spare() -> None:
    job = running_job(8, micro_batches=8)
    plan = plan_change(job.config, job.state, control.ChangeRequest(add=1))
    assert isinstance(plan, Change), plan
    job.send(plan.events[0])
    job.ready("w8")
    assert len(job.members) == 8
    assert job.said[-1].startswith("w8 waits as a spare: a batch is cut into 8 micro-batches; ")


def test_a_spare_in_a_full_world_causes_no_round() -> None:
    job = running_job(2, micro_batches=2)
    job.add_ready("w2")
    job.wait(10.0)
    assert job.pending_through == 0
    assert job.state.rounds.forming is None


@pytest.mark.parametrize(
    ("micro_batches", "max_workers", "reason"),
    [
        (2, 8, "a batch is cut into 2 micro-batches; a smaller micro_batch_size"),
        (8, 2, "2 workers train already (--max_workers)"),
    ],
)
def test_people_are_told_once_why_a_worker_has_nothing_to_do(
    micro_batches: int, max_workers: int, reason: str
) -> None:
    job = running_job(2, micro_batches, max_workers=max_workers)
    job.add_ready("w2")
    for _ in range(3):
        job.wait(10.0)
    told = [line for line in job.said if "spare" in line]
    assert len(told) == 1
    assert told[0].startswith(f"w2 waits as a spare: {reason}")
