"""Slots are revoked and granted: which workers leave or are replaced, what a deadline does."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from hvd_elastic_keras.common.control import ChangeRequest, SlotsRequest
from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.actions import Outcome
from hvd_elastic_keras.master.machine.change_request import (
    SlotsChange,
    plan_change,
    plan_slots,
    slots_to_revoke,
)
from hvd_elastic_keras.master.machine.phases import Stopping
from hvd_elastic_keras.master.machine.state import (
    Finish,
    State,
    Training,
    Worker,
    WorkerPhase,
    update_for,
)
from hvd_elastic_keras.settings.job_config import JobConfig
from tests.unit.master.membership_driver import Job

MEMBER, READY, STARTING = WorkerPhase.MEMBER, WorkerPhase.READY, WorkerPhase.STARTING
CONFIG = JobConfig(num_workers=4, min_workers=2, max_workers=6)


@pytest.fixture
def four() -> Job:
    """Returns four workers that run round 1 at step 10."""
    job = Job(4)
    job.start(step=10)
    return job


def state_of(*workers: Worker, **changes: Any) -> State:
    by_id = {w.worker_id: w for w in workers}
    hosts = [w.host for w in workers]
    slots = {host: hosts.count(host) for host in dict.fromkeys(hosts)}
    return State(workers=by_id, next_worker_number=len(workers), **{"slots": slots, **changes})


def worker(number: int, host: str, phase: WorkerPhase, seniority: int | None = None) -> Worker:
    return Worker(f"w{number}", 0.0, phase=phase, host=host, seniority=seniority)


FOUR = state_of(*(worker(i, "localhost", MEMBER, i) for i in range(4)))
FINISHING = replace(FOUR, training=Training(1, finish=Finish()))
TWO_HOSTS = state_of(
    worker(0, "a", MEMBER, 0),
    worker(1, "b", MEMBER, 1),
    worker(2, "a", MEMBER, 2),
    worker(3, "b", READY),
    worker(4, "b", STARTING),
    slots={"a": 2, "b": 4},
)


def revoke(job: Job, count: int, deadline_s: float | None = None) -> SlotsChange:
    request = SlotsRequest(revoke=count, deadline_s=deadline_s)
    plan = plan_slots(job.config, job.state, request)
    assert isinstance(plan, SlotsChange), plan
    job.send(plan.event)
    return plan


def grant(job: Job, count: int) -> SlotsChange:
    plan = plan_slots(job.config, job.state, SlotsRequest(grant=count))
    assert isinstance(plan, SlotsChange), plan
    job.send(plan.event)
    return plan


# --- workers that leave ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hosts", "count", "empty", "leavers"),
    [
        (["b"], 1, {"b": 1}, []),
        (["b"], 2, {"b": 1}, ["w4"]),
        (["b"], 3, {"b": 1}, ["w4", "w3"]),
        (["b"], 4, {"b": 1}, ["w4", "w3", "w1"]),
        (["a"], 1, {}, ["w2"]),
        (["a", "b"], 4, {"b": 1}, ["w4", "w3", "w2"]),
        (["a", "b"], 6, {"b": 1}, ["w4", "w3", "w2", "w1", "w0"]),
    ],
)
def test_empty_slots_go_first_then_who_starts_then_spares_then_the_youngest_members(
    hosts: list[str], count: int, empty: dict[str, int], leavers: list[str]
) -> None:
    found_empty, found = slots_to_revoke(TWO_HOSTS, hosts, count)
    assert found_empty == empty
    assert [w.worker_id for w in found] == leavers


def test_seniority_and_not_the_number_decides_among_members() -> None:
    state = state_of(worker(0, "a", MEMBER, 5), worker(7, "a", MEMBER, 0))
    assert [w.worker_id for w in slots_to_revoke(state, ["a"], 1)[1]] == ["w0"]


def test_a_worker_that_leaves_already_has_no_slot_to_take() -> None:
    leaving = replace(FOUR.workers["w3"], leaving="slot revoked")
    state = replace(FOUR, workers={**FOUR.workers, "w3": leaving}, slots={"localhost": 3})
    assert [w.worker_id for w in slots_to_revoke(state, ["localhost"], 1)[1]] == ["w2"]


# --- what is answered --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "event", "text", "workers"),
    [
        (
            SlotsRequest(revoke=1),
            act.RevokeSlots(("w3",), {}, None),
            "w3 will leave after the current step",
            ("w3",),
        ),
        (
            SlotsRequest(revoke=2, host="localhost", deadline_s=30.0),
            act.RevokeSlots(("w3", "w2"), {}, 30.0),
            "w3, w2 will leave after the current step, or are killed after 30 s",
            ("w3", "w2"),
        ),
        (SlotsRequest(grant=1), act.GrantSlots("localhost", 1), "w4 is starting", ("w4",)),
        (
            SlotsRequest(grant=2, host="localhost"),
            act.GrantSlots("localhost", 2),
            "w4, w5 are starting",
            ("w4", "w5"),
        ),
    ],
)
def test_an_accepted_request_says_who_leaves_or_starts(
    request_: SlotsRequest, event: act.Event, text: str, workers: tuple[str, ...]
) -> None:
    assert plan_slots(CONFIG, FOUR, request_) == SlotsChange(event, text, workers)  # type: ignore[arg-type]


def test_empty_slots_are_told_apart_from_workers() -> None:
    state = replace(FOUR, slots={"localhost": 5})
    plans = [plan_slots(CONFIG, state, SlotsRequest(revoke=n)) for n in (1, 2)]
    assert [plan.text for plan in plans if isinstance(plan, SlotsChange)] == [
        "1 empty slot is gone; nobody has to leave",
        "w3 will leave after the current step; 1 empty slot is gone",
    ]


@pytest.mark.parametrize(
    ("state", "request_", "words"),
    [
        (FOUR, SlotsRequest(revoke=5), ["5 were to be revoked", "only 4 slots"]),
        (TWO_HOSTS, SlotsRequest(revoke=3, host="a"), ["only 2 slots on a"]),
        (FOUR, SlotsRequest(revoke=3), ["4 slots minus 3", "min_workers=2"]),
        (FOUR, SlotsRequest(grant=3), ["4 slots plus 3", "max_workers=6", "--max_workers"]),
        (FOUR, SlotsRequest(revoke=1, host="x"), ["no host 'x'", "localhost"]),
        (FOUR, SlotsRequest(grant=1, host="x"), ["no host 'x'", "localhost"]),
        (TWO_HOSTS, SlotsRequest(grant=1), ["without a host", "a, b"]),
        (
            replace(FOUR, job=Stopping("interrupted")),
            SlotsRequest(grant=1),
            ["is ending"],
        ),
        (
            replace(FOUR, training=Training(1, finish=Finish())),
            SlotsRequest(revoke=1),
            ["is finished"],
        ),
        (
            state_of(*(worker(i, "a", MEMBER, i) for i in range(2)), slots={"a": 2, "b": 4}),
            SlotsRequest(revoke=1, host="a"),
            ["2 workers minus 1", "min_workers=2"],
        ),
    ],
)
def test_a_refusal_says_what_was_asked_for_and_that_nothing_was_changed(
    state: State, request_: SlotsRequest, words: list[str]
) -> None:
    plan = plan_slots(CONFIG, state, request_)
    assert isinstance(plan, str)
    assert all(word in plan for word in [*words, "nothing was changed"]), plan


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (SlotsRequest(), ["Neither revoke nor grant"]),
        (SlotsRequest(revoke=1, grant=1), ["Revoke and grant"]),
        (SlotsRequest(revoke=0), ["revoke 0", "at least 1"]),
        (SlotsRequest(grant=-2), ["grant -2", "at least 1"]),
        (SlotsRequest(grant=1, deadline_s=3.0), ["deadline_s", "revoke only"]),
        (SlotsRequest(revoke=1, deadline_s=0.0), ["deadline_s 0", "more than 0"]),
        (SlotsRequest(revoke=1, deadline_s=float("nan")), ["deadline_s nan"]),
    ],
)
def test_a_mistake_is_known_without_the_job(request_: SlotsRequest, words: list[str]) -> None:
    assert all(word in request_.mistake for word in words), request_.mistake


def test_what_makes_sense_is_no_mistake() -> None:
    requests = [SlotsRequest(grant=1), SlotsRequest(revoke=2, host="a", deadline_s=0.5)]
    assert [request.mistake for request in requests] == ["", ""]


# --- a revoked worker leaves and is not replaced -----------------------------------------


def test_a_revoked_worker_leaves_after_a_step_without_a_restart(four: Job) -> None:
    revoke(four, 1)
    assert four.state.rounds.pending_through == 1
    assert update_for(four.state, "w3").leave == "slot revoked"
    four.enter("w3", step=11)
    assert four.told_to_leave("w3") == ["slot revoked"]
    four.exit("w3")
    four.enter("w0", "w1", "w2", step=11)
    four.running("w0", "w1", "w2", step=11)
    assert four.state.rounds.broken_through == 0
    assert four.launches == ["w0", "w1", "w2", "w3"]
    assert four.state.restarts.used == 0
    exited = four.events("worker_exited")[-1]
    assert (exited["cause"], exited["failed"]) == ("left: slot revoked", False)
    assert four.said[-1] == (
        "round 2: 4 → 3 workers (w0, w1, w2), 3+3+2 micro-batches: w3 leaves (slot revoked); "
        "stalled 0.00 s, 0 steps lost"
    )
    assert four.events("round_running")[-1]["micro_batches"] == [3, 3, 2]


def test_changes_of_slots_are_recorded(four: Job) -> None:
    revoke(four, 2, deadline_s=30.0)
    grant(four, 1)
    four.sigterm("w0")
    assert four.events("slots_granted") == [
        {"host": "localhost", "slots": 4, "workers": ["w0", "w1", "w2", "w3"]},
        {"host": "localhost", "slots": 1, "workers": ["w4"]},
    ]
    assert four.events("slots_revoked") == [
        {
            "host": "localhost",
            "slots": 2,
            "deadline_s": 30.0,
            "workers": ["w3", "w2"],
            "reason": "slot revoked",
        },
        {
            "host": "localhost",
            "slots": 1,
            "deadline_s": None,
            "workers": ["w0"],
            "reason": "SIGTERM",
        },
    ]
    assert four.state.slots == {"localhost": 2}


def test_failures_are_replaced_up_to_the_granted_slots_only(four: Job) -> None:
    revoke(four, 2)
    four.kill("w1")
    assert four.launches[4:] == ["w4"], "w0 alone would be one worker too few"
    four.kill("w3")
    assert four.launches[4:] == ["w4"], "its slot is revoked"
    assert four.state.restarts.used == 1


def test_a_granted_slot_is_filled_by_a_new_worker_that_joins(four: Job) -> None:
    revoke(four, 1)
    four.enter("w3", "w0", "w1", "w2", step=11)
    four.exit("w3")
    four.running("w0", "w1", "w2", step=11)
    grant(four, 1)
    assert four.launches[-1] == "w4"
    four.ready("w4")
    four.enter("w0", "w1", "w2", step=12)
    four.running("w0", "w1", "w2", "w4", step=12)
    assert four.said[-1].startswith(
        "round 3: 3 → 4 workers (w0, w1, w2, w4), 2+2+2+2 micro-batches: w4 joins; stalled"
    )
    assert four.state.restarts.used == 0


def test_a_slot_can_be_granted_while_the_worker_of_the_revoked_one_still_leaves(four: Job) -> None:
    revoke(four, 1)
    grant(four, 1)
    four.ready("w4")
    four.enter("w0", "w1", "w2", "w3", step=11)
    assert four.members == ["w0", "w1", "w2", "w4"]
    assert four.told_to_leave("w3") == ["slot revoked"]


def test_a_spare_is_revoked_without_disturbing_the_round() -> None:
    job = Job(3, micro_batches=2)
    job.start()
    assert revoke(job, 1).workers == ("w2",)
    job.exit("w2")
    assert job.state.rounds.pending_through == 0
    assert job.said[-1] == "slot revoked: w2 (not in the round)"


def test_a_lost_worker_that_is_not_replaced_leaves_an_empty_slot() -> None:
    job = Job(3, max_restarts=0)
    job.start()
    job.kill("w1")
    assert job.state.slots == {"localhost": 3}
    assert revoke(job, 1).workers == ()
    assert job.state.slots == {"localhost": 2}
    assert job.said[-1] == "slot revoked: 1 empty (not in the round)"


def test_adding_fills_an_empty_slot_before_it_takes_another() -> None:
    job = Job(3, max_restarts=0, max_workers=4)
    job.start()
    job.kill("w1")
    for _ in range(2):
        plan = plan_change(job.config, job.state, ChangeRequest(add=1))
        assert not isinstance(plan, str)
        job.send(plan.events[0])
    assert job.state.slots == {"localhost": 4}
    assert job.launches[3:] == ["w3", "w4"]
    assert [e["slots"] for e in job.events("slots_granted")] == [3, 1]


def test_a_worker_that_is_replaced_stays_on_its_host() -> None:
    job = Job(2)
    # One slot of the first host is empty.
    job.state = replace(job.state, slots={"localhost": 3, "b": 0})
    job.send(act.GrantSlots("b", 1))
    assert job.worker("w2").host == "b"
    job.start()
    job.kill("w2")
    assert job.worker("w3").host == "b"
    job.send(act.RevokeSlots(("w3",), {}, None))
    job.kill("w3")
    assert job.state.slots == {"localhost": 3, "b": 0}


# --- the deadline ------------------------------------------------------------------------


def test_who_has_not_left_by_the_deadline_is_killed_and_the_others_recover(four: Job) -> None:
    revoke(four, 1, deadline_s=5.0)
    four.wait(4.9)
    assert four.killed == []
    four.wait(0.1)
    assert four.killed == ["w3"]
    assert "w3 has not left within 5 s (slot revoked): it is killed" in four.said
    assert four.state.rounds.broken_through == 1
    exited = four.events("worker_exited")[-1]
    assert exited["cause"] == "was killed: it had not left within 5 s"
    assert exited["failed"] is False
    four.enter("w0", "w1", "w2", step=10)
    four.running("w0", "w1", "w2", step=10)
    assert four.said[-1].startswith("round 2: 4 → 3 workers (w0, w1, w2), 3+3+2 micro-batches: ")
    assert four.launches == ["w0", "w1", "w2", "w3"]
    assert (four.state.restarts.used, four.state.restarts.last_failure) == (0, None)
    four.kill("w3")
    assert len(four.events("worker_exited")) == 1, "the launcher's report comes second"


def test_who_leaves_in_time_is_not_killed(four: Job) -> None:
    revoke(four, 1, deadline_s=5.0)
    four.enter("w0", "w1", "w2", "w3", step=11)
    four.exit("w3")
    four.wait(6.0)
    assert four.killed == []


def test_who_has_left_the_round_but_not_ended_by_the_deadline_is_killed(four: Job) -> None:
    revoke(four, 1, deadline_s=5.0)
    four.enter("w0", "w1", "w2", "w3", step=11)
    four.running("w0", "w1", "w2", step=11)
    four.wait(5.0)
    assert four.killed == ["w3"]
    assert four.state.rounds.broken_through == 0, "the others train on"
    assert four.round_number == 2


def test_the_deadline_holds_in_the_script_after_the_training_and_fails_no_job(four: Job) -> None:
    revoke(four, 1, deadline_s=5.0)
    four.done("w0", "w1", "w2", "w3", step=30)
    four.exit("w0", "w1", "w2")
    assert four.end is None
    four.wait(5.0)
    assert four.killed == ["w3"]
    assert four.end == act.EndJob(Outcome.FINISHED, "finished")


def test_a_worker_that_has_not_been_started_yet_is_gone_at_once() -> None:
    job = Job(2, min_workers=1)
    job.send(act.Started("w0", "localhost", 1))
    revoke(job, 1, deadline_s=0.5)
    assert job.workers == ["w0"]
    job.wait(0.5)
    assert (job.killed, job.said) == ([], ["slot revoked: w1 (not in the round)"])
    # The controller notices when its delay is over.
    job.exit("w1")
    assert job.events("worker_exited") == []


def test_without_a_deadline_nobody_is_killed(four: Job) -> None:
    revoke(four, 1)
    for _ in range(10):
        four.wait(10.0)
        four.heartbeat("w0", "w1", "w2", "w3", step=10)
    assert four.killed == []


# --- the line of a round -----------------------------------------------------------------


@pytest.fixture
def w4_joins(four: Job) -> Job:
    """Returns `four` with a round that ends after the current step, because w4 is to join."""
    grant(four, 1)
    four.ready("w4")
    assert four.events("round_opened")[-1]["reason"] == "w4 joins"
    return four


def line_of_next_round(job: Job, *ids: str) -> str:
    """Lets these workers come to the entrance and run the round; returns the line about it."""
    job.enter(*ids, step=11)
    job.running(*job.members, step=11)
    line = job.said[-1]
    assert job.events("round_running")[-1]["reason"] in line, "the record says the same"
    return line.partition("; stalled")[0]


@pytest.mark.parametrize(
    ("revoked", "line"),
    [
        (2, "round 2: 4 → 3 workers (w0, w1, w2), 3+3+2 micro-batches: w3 leaves (slot revoked)"),
        (3, "round 2: 4 → 2 workers (w0, w1), 4+4 micro-batches: w2, w3 leave (slots revoked)"),
    ],
)
def test_who_is_revoked_while_another_is_to_join_is_named_and_the_join_is_not(
    w4_joins: Job, revoked: int, line: str
) -> None:
    assert revoke(w4_joins, revoked).workers[0] == "w4"
    assert w4_joins.said[-1] == "slot revoked: w4 (not in the round)"
    assert line_of_next_round(w4_joins, "w0", "w1", "w2", "w3") == line


def test_who_is_removed_while_another_joins_is_named_with_it(w4_joins: Job) -> None:
    w4_joins.send(act.RemoveWorker("w1"))
    assert line_of_next_round(w4_joins, "w0", "w1", "w2", "w3") == (
        "round 2: 4 → 4 workers (w0, w2, w3, w4), 2+2+2+2 micro-batches: w4 joins; "
        "w1 leaves (removed on request)"
    )


def test_a_join_that_is_called_off_is_told_as_such(w4_joins: Job) -> None:
    revoke(w4_joins, 1)
    assert line_of_next_round(w4_joins, "w0", "w1", "w2", "w3").endswith(
        ": the joining worker left before it joined"
    )


def test_a_joiner_that_dies_before_the_round_runs_is_not_said_to_join(w4_joins: Job) -> None:
    w4_joins.enter("w0", "w1", "w2", "w3", step=11)
    w4_joins.kill("w4")
    assert line_of_next_round(w4_joins, "w0", "w1", "w2", "w3").endswith(
        "(w0, w1, w2, w3), 2+2+2+2 micro-batches: w4 was killed by SIGKILL"
    )


def test_all_who_leave_together_are_named_in_the_line_and_in_both_records(four: Job) -> None:
    revoke(four, 3, deadline_s=5.0)
    reason = "w1, w2, w3 leave (slots revoked)"
    assert four.events("round_opened")[-1]["reason"] == reason
    assert line_of_next_round(four, "w0").endswith(f"4 → 1 worker (w0), 8 micro-batches: {reason}")
    assert "slot revoked" not in "".join(four.said[:-1])


def test_who_leaves_after_a_break_is_named_beside_the_death(four: Job) -> None:
    four.kill("w1")
    revoke(four, 1)  # the slot of the replacement, which has not been started
    revoke(four, 1)
    assert line_of_next_round(four, "w0", "w2").endswith(
        ": w1 was killed by SIGKILL; w3 leaves (slot revoked)"
    )


def test_who_is_to_leave_a_round_that_breaks_before_it_runs_is_named(four: Job) -> None:
    four.kill("w1")
    four.enter("w0", "w2", "w3", step=10)
    four.send(act.RemoveWorker("w3"))  # w3 already has its place
    four.kill("w2")
    assert line_of_next_round(four, "w0").endswith(
        ": w1 was killed by SIGKILL; w2 was killed by SIGKILL; w3 leaves (removed on request)"
    )


def test_a_replacement_takes_part_with_its_name(four: Job) -> None:
    four.kill("w1")
    four.ready("w4")
    assert line_of_next_round(four, "w0", "w2", "w3").endswith(
        ": w1 was killed by SIGKILL; w4 joins"
    )


def test_the_shares_of_many_workers_are_grouped() -> None:
    job = Job(7, micro_batches=20)
    job.start()
    assert job.said == [
        "round 1: 7 workers (w0, w1, w2, w3, w4, w5, w6) start, 6x3+1x2 micro-batches"
    ]


def test_a_kill_is_told_with_the_new_shares_too(four: Job) -> None:
    four.kill("w1")
    four.enter("w0", "w2", "w3", step=10)
    four.running("w0", "w2", "w3", step=10)
    assert four.said[-1].startswith(
        "round 2: 4 → 3 workers (w0, w2, w3), 3+3+2 micro-batches: w1 was killed by SIGKILL; "
    )


def test_a_loop_without_micro_batches_has_no_shares() -> None:
    job = Job(2, micro_batches=0)
    job.start()
    assert job.said == ["round 1: 2 workers (w0, w1) start"]
    assert job.events("round_running")[0]["micro_batches"] == []
