"""What a fault has cost, from the events of the job."""

from __future__ import annotations

import pytest

from hvd_elastic_keras.chaos.outcome import Cost, Fired, Outcome, cost_of, is_settled, report_table
from hvd_elastic_keras.chaos.plan import Fault
from hvd_elastic_keras.common import events
from hvd_elastic_keras.observe.job_history import Timed

KILL, SUSPEND = Fault(kind="kill"), Fault(kind="suspend")


def exited(time: float, worker_id: str, failed: bool = True) -> Timed:
    entry = events.WorkerExited(worker_id=worker_id, pid=1, cause="x", failed=failed, step=40)
    return Timed(time, entry)


def opened(time: float, reason: str) -> Timed:
    return Timed(time, events.RoundOpened(round=2, reason=reason))


def revoked(time: float, worker_id: str) -> Timed:
    entry = events.SlotsRevoked(
        host="localhost", slots=1, deadline_s=None, workers=[worker_id], reason="SIGTERM"
    )
    return Timed(time, entry)


def running(time: float, number: int, *members: str) -> Timed:
    entry = events.RoundRunning(
        round=number,
        training=1,
        world_size=len(members),
        members=list(members),
        micro_batches=[],
        reason="",
        step=41,
        stall_s=0.5,
        noticed_s=0.2,
        entered_s=0.1,
        synced_s=0.2,
        steps_lost=1,
    )
    return Timed(time, entry)


def fired(time: float, worker_id: str = "w1", rank: int | None = 1) -> Fired:
    return Fired(time=time, worker_id=worker_id, rank=rank, step=40)


HISTORY = [
    running(100.0, 1, "w0", "w1", "w10"),
    exited(110.25, "w10"),
    opened(110.25, "w10 was killed by SIGKILL"),
    running(110.75, 2, "w0", "w1"),
    exited(120.5, "w1"),
    running(121.0, 3, "w0"),
]


def test_the_cost_of_a_kill_is_that_of_the_first_round_without_the_worker() -> None:
    cost = cost_of(KILL, fired(110.0, "w10", 2), HISTORY)
    assert (cost.detected_s, cost.round, cost.stall_s, cost.steps_lost) == (0.25, 2, 0.5, 1)
    assert (cost.noticed_s, cost.entered_s, cost.synced_s) == (0.2, 0.1, 0.2)
    # Not w10, whose name begins alike.
    assert cost_of(KILL, fired(110.0), HISTORY).round == 3


def test_a_planned_leave_is_noticed_when_its_slot_is_taken_back() -> None:
    history = [revoked(10.5, "w1"), running(11.0, 2, "w0"), exited(12.0, "w1", failed=False)]
    cost = cost_of(Fault(kind="terminate"), fired(10.0), history)
    assert (cost.detected_s, cost.round) == (0.5, 2)


def test_a_worker_that_finishes_is_not_lost() -> None:
    history = [*HISTORY[:4], exited(130.0, "w1", failed=False)]
    assert cost_of(SUSPEND, fired(119.0), history).told == "no worker was lost"


def test_a_round_that_is_formed_again_because_of_a_worker_has_not_lost_it() -> None:
    history = [opened(120.0, "w1 lost contact"), running(121.0, 3, "w0", "w1")]
    assert cost_of(SUSPEND, fired(119.0), history).told == "no worker was lost"


def test_a_worker_is_lost_by_its_last_fault() -> None:
    suspended, killed = fired(119.0), fired(120.0)
    both = [suspended, killed]
    assert cost_of(SUSPEND, suspended, HISTORY, both).told == "no worker was lost"
    assert cost_of(KILL, killed, HISTORY, both).round == 3
    assert cost_of(SUSPEND, suspended, HISTORY, [suspended]).round == 3


@pytest.mark.parametrize(
    ("fault", "until", "settled"),
    [
        (KILL, 4, False),  # not noticed yet
        (KILL, 5, False),  # no round has run since
        (KILL, 6, True),
        (SUSPEND, 4, True),  # no worker was lost
        (SUSPEND, 5, False),
    ],
)
def test_a_cost_is_settled_when_a_round_runs_again(fault: Fault, until: int, settled: bool) -> None:
    what = fired(120.0)
    assert is_settled(fault, what, cost_of(fault, what, HISTORY[:until])) == settled


def test_nobody_waits_for_a_spare() -> None:
    spare = fired(120.0, rank=None)
    cost = cost_of(KILL, spare, HISTORY)
    assert (cost.stall_s, cost.detected_s) == (None, 0.5)
    assert is_settled(KILL, spare, cost)


def test_a_killed_launcher_costs_what_passes_until_the_job_is_heard_of_again() -> None:
    kill = Fault(kind="kill", target="launcher")
    what = Fired(time=110.0, step=3)
    assert not is_settled(kill, what, cost_of(kill, what, HISTORY[:1]))
    cost = cost_of(kill, what, HISTORY)
    assert cost.detected_s == 0.25
    assert is_settled(kill, what, cost)


def test_the_table_tells_of_all_faults() -> None:
    cost = cost_of(KILL, fired(120.0), HISTORY)
    rows = [
        Outcome(number=1, fault=KILL, fired=fired(120.0), cost=cost),
        Outcome(number=2, fault=SUSPEND, why_not="there was no rank 3 when the job had ended"),
        Outcome(number=3, fault=KILL, fired=fired(1.0, "", None), cost=Cost(told="back")),
    ]
    _, kill, suspend, launcher = report_table(rows).splitlines()
    assert kill.split() == [
        "1",
        "kill",
        "w1",
        "(rank",
        "1)",
        "40",
        "0.50",
        "s",
        "0.50",
        "s",
        "0.20+0.10+0.20",
        "1",
    ]
    assert suspend.endswith("did not happen: there was no rank 3 when the job had ended")
    assert launcher.split()[:3] == ["3", "kill", "launcher"]
