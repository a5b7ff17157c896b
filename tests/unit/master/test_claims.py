"""One of all workers saves a file: never two at a time, and one always does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_keras.common import protocol
from hvd_elastic_keras.master.machine.claims import (
    BLOCK_GRACE_S,
    ROOT_GRACE_S,
    Claims,
    Present,
    Verdict,
    claim,
    forget,
    release,
    result_for,
)

ALL = Present("w0", 1, {"w0", "w1", "w2"})
DO, WAIT, DONE = Verdict.DO, Verdict.WAIT, Verdict.DONE


def ask(worker_id: str, name: str = "a.keras", **fields: object) -> protocol.ClaimRequest:
    values = {"training": 1, "finished": True, "progress": 0, "number": 0, "call": 0, **fields}
    return protocol.ClaimRequest(worker_id=worker_id, name=name, **values)  # type: ignore[arg-type]


class Desk:
    """Asks one claim after the other."""

    def __init__(self) -> None:
        self.claims = Claims()

    def ask(
        self, request: protocol.ClaimRequest, present: Present = ALL, now: float = 0.0
    ) -> Verdict:
        self.claims, verdict = claim(self.claims, request, present, now)
        return verdict

    def release(
        self, worker_id: str, name: str = "a.keras", done: bool = True, result: str = ""
    ) -> None:
        event = protocol.ReleaseRequest(worker_id=worker_id, name=name, done=done, result=result)
        self.claims = release(self.claims, event)


def test_the_root_saves_and_the_others_wait_for_it_whoever_comes_first() -> None:
    desk = Desk()
    assert desk.ask(ask("w1")) is WAIT
    assert desk.ask(ask("w0")) is DO
    assert desk.ask(ask("w2")) is WAIT
    desk.release("w0")
    assert [desk.ask(ask(w)) for w in ("w1", "w2")] == [DONE, DONE]


def test_if_the_worker_that_saves_is_lost_the_next_root_saves() -> None:
    desk = Desk()
    assert desk.ask(ask("w0")) is DO
    assert [desk.ask(ask(w)) for w in ("w1", "w2")] == [WAIT, WAIT]
    left = Present("w1", 1, {"w1", "w2"})
    assert desk.ask(ask("w2"), left) is WAIT
    assert desk.ask(ask("w1"), left) is DO
    assert desk.ask(ask("w2"), left, now=1e6) is WAIT  # never two at a time
    desk.release("w1")
    assert desk.ask(ask("w2"), left) is DONE


def test_a_save_that_failed_is_tried_by_the_others_too() -> None:
    desk = Desk()
    assert desk.ask(ask("w0")) is DO
    desk.release("w0", done=False)
    assert desk.ask(ask("w1"), now=ROOT_GRACE_S) is DO


def test_the_newest_result_is_told_but_not_to_a_worker_that_repeats_older_calls() -> None:
    desk = Desk()
    first, second = ask("w0"), ask("w0", number=1)
    assert result_for(desk.claims, first) == ""
    for request, result in ((first, "1 a-1"), (second, "2 a-2")):
        assert desk.ask(request) is DO
        desk.release("w0", result=result)
    assert desk.ask(ask("w1", number=1)) is DONE
    assert result_for(desk.claims, ask("w1")) == ""
    assert result_for(desk.claims, ask("w1", number=1)) == "2 a-2"
    assert result_for(desk.claims, ask("w2", number=2)) == "2 a-2"
    assert result_for(desk.claims, ask("w2", "b.keras")) == ""
    assert result_for(forget(desk.claims, 1), ask("w2", number=2)) == "2 a-2"  # 1 was finished


def test_a_worker_saves_to_a_path_of_its_own_as_soon_as_the_root_is_past_that_call() -> None:
    desk = Desk()
    assert desk.ask(ask("w1", "w1.keras")) is WAIT
    assert desk.ask(ask("w0", "w0.keras")) is DO
    assert desk.ask(ask("w1", "w1.keras")) is DO
    assert desk.ask(ask("w2", "later.keras", call=1)) is WAIT
    assert desk.ask(ask("w2", "later.keras", call=1), Present("w0", 2, {"w0", "w2"})) is DO


@pytest.mark.parametrize(("name", "grace_s"), [("a.keras", ROOT_GRACE_S), ("", BLOCK_GRACE_S)])
def test_nobody_waits_for_ever_for_a_root_that_does_not_come(name: str, grace_s: float) -> None:
    desk = Desk()
    assert desk.ask(ask("w1", name), now=1.0) is WAIT
    assert desk.ask(ask("w1", name), now=0.9 + grace_s) is WAIT
    assert desk.ask(ask("w1", name), now=1.0 + grace_s) is DO


def test_a_block_waits_for_the_root_although_it_makes_other_calls_at_that_point() -> None:
    desk = Desk()
    assert desk.ask(ask("w0", "of_the_root_alone.keras")) is DO
    assert desk.ask(ask("w1", "")) is WAIT
    assert desk.ask(ask("w0", "", call=1)) is DO


def test_a_worker_that_catches_up_does_not_write_old_files_over_new_ones() -> None:
    desk = Desk()
    assert desk.ask(ask("w0", training=2)) is DO
    desk.release("w0")
    assert desk.ask(ask("w1", training=1)) is DONE
    assert desk.ask(ask("w1", training=2, number=1, call=1)) is WAIT  # one more claim at that point
    assert desk.ask(ask("w1", training=3)) is WAIT


def test_what_is_gone_again_is_done_again() -> None:
    desk = Desk()
    assert desk.ask(ask("w0")) is DO
    desk.release("w0")
    assert desk.ask(ask("w1")) is DONE
    assert desk.ask(ask("w1", again=True), now=ROOT_GRACE_S) is DO


def test_steps_that_are_taken_again_save_again() -> None:
    desk = Desk()
    for position in ({"training": 1}, {"training": 2, "finished": False, "progress": 7}):
        name = f"{position['training']}.keras"
        assert desk.ask(ask("w0", name, **position)) is DO
        desk.release("w0", name)
    desk.claims = forget(desk.claims, training=2)
    assert desk.ask(ask("w0", "2.keras", training=2, finished=False, progress=3)) is DO
    assert desk.ask(ask("w0", "1.keras", training=1)) is DONE


def test_who_is_no_part_of_the_job_does_nothing() -> None:
    assert Desk().ask(ask("w9"), now=1e6) is WAIT


@given(st.lists(st.tuples(st.sampled_from("arkx"), st.integers(0, 3)), max_size=60))
def test_whatever_happens_one_at_a_time_saves_and_in_the_end_somebody_has(
    moves: list[tuple[str, int]],
) -> None:
    desk, alive, busy, now = Desk(), [f"w{n}" for n in range(4)], set(), 0.0
    saved = False
    for move, number in [*moves, *[("a", n) for n in range(4)] * 3]:
        worker = f"w{number}"
        present = Present(alive[0], 1, set(alive))
        now += 2.0
        if worker not in alive:
            continue
        if move == "a" and desk.ask(ask(worker), present, now) is DO:
            busy.add(worker)
            assert busy == {worker}
            assert not saved
        elif move == "r" and worker in busy:
            desk.release(worker)
            busy.remove(worker)
            saved = True
        elif move == "k" and len(alive) > 1:
            alive.remove(worker)
            busy.discard(worker)
    assert saved or busy
