"""Hosts that come and go, and the slots of a job."""

from __future__ import annotations

import pytest

from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.change_request import follow, within
from hvd_elastic_keras.master.machine.decide import decide
from hvd_elastic_keras.master.machine.state import State, Worker, WorkerPhase
from hvd_elastic_keras.settings.job_config import JobConfig

CONFIG = JobConfig(num_workers=4, min_workers=2, max_workers=6)


def worker(number: int, host: str) -> Worker:
    return Worker(f"w{number}", 0.0, phase=WorkerPhase.MEMBER, host=host, seniority=number)


def state_of(slots: dict[str, int], *workers: Worker) -> State:
    return State(
        workers={w.worker_id: w for w in workers}, next_worker_number=len(workers), slots=slots
    )


FOUR = state_of({"a": 2, "b": 2}, worker(0, "a"), worker(1, "b"), worker(2, "a"), worker(3, "b"))


@pytest.mark.parametrize(
    ("most", "expected"),
    [(9, {"a": 2, "b": 4}), (6, {"a": 2, "b": 4}), (3, {"a": 2, "b": 1}), (1, {"a": 1, "b": 0})],
)
def test_there_are_no_more_slots_than_there_may_be(most: int, expected: dict[str, int]) -> None:
    assert within({"a": 2, "b": 4}, most) == expected


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"a": 2, "b": 2}, []),
        ({"b": 2, "a": 2}, []),
        ({"a": 3, "b": 2, "c": 1}, [act.GrantSlots("a", 1), act.GrantSlots("c", 1)]),
        ({"a": 1, "b": 2}, [act.RevokeSlots(("w2",), {}, None)]),
        ({"a": 2}, [act.RevokeSlots(("w3", "w1"), {}, None)]),
        ({"a": 2, "b": 0}, [act.RevokeSlots(("w3", "w1"), {}, None)]),
        ({}, [act.RevokeSlots(("w2", "w0"), {}, None), act.RevokeSlots(("w3", "w1"), {}, None)]),
        ({"b": 2, "c": 9}, [act.RevokeSlots(("w2", "w0"), {}, None), act.GrantSlots("c", 4)]),
    ],
)
def test_slots_follow_the_hosts(wanted: dict[str, int], expected: list[act.Event]) -> None:
    assert follow(CONFIG, FOUR, {"a": 2, "b": 2}, wanted) == expected


def test_what_was_given_back_in_another_way_is_neither_granted_again_nor_taken_twice() -> None:
    removed = state_of({"a": 2, "b": 0}, worker(0, "a"), worker(2, "a"))
    known = {"a": 2, "b": 2}
    assert follow(CONFIG, removed, known, known) == []
    assert follow(CONFIG, removed, known, {"a": 2}) == []
    empty = state_of({"a": 2, "b": 1}, worker(0, "a"), worker(2, "a"))
    assert follow(CONFIG, empty, known, {"a": 2}) == [act.RevokeSlots((), {"b": 1}, None)]


def test_the_machine_starts_workers_on_new_hosts_and_asks_those_of_a_lost_one_to_leave() -> None:
    state = FOUR
    for event in follow(CONFIG, FOUR, {"a": 2, "b": 2}, {"a": 2, "c": 2}):
        state, _ = decide(CONFIG, state, event, 1.0)
    assert state.slots == {"a": 2, "b": 0, "c": 2}
    leaving = {w.worker_id: w.host for w in state.workers.values() if w.leaving}
    assert leaving == {"w1": "b", "w3": "b"}
    starting = {w.worker_id: w.host for w in state.workers.values() if w.pid is None}
    assert {i: h for i, h in starting.items() if i in ("w4", "w5")} == {"w4": "c", "w5": "c"}
