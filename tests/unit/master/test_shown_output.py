"""All workers print, but people see one worker's lines, without a gap and not twice."""

from __future__ import annotations

from hvd_elastic_keras.launchers.base import WorkerExit
from hvd_elastic_keras.master.machine.state import Rounds, State, Worker, WorkerPhase
from hvd_elastic_keras.master.shown_output import ShownOutput


def state(*worker_ids: str, members: tuple[str, ...] = (), **changes: object) -> State:
    workers = {w: Worker(w, 0.0, **changes) for w in worker_ids}  # type: ignore[arg-type]
    return State(workers=workers, rounds=Rounds(last_members=members))


def shown(output: ShownOutput, now: State) -> list[str]:
    return [f"w{n}" for n in range(4) if output.shows(now, f"w{n}")]


def test_before_the_first_round_it_is_the_first_worker_and_then_rank_0() -> None:
    output = ShownOutput(everything=False)
    assert shown(output, state("w0", "w1", "w2")) == ["w0"]
    assert shown(output, state("w0", "w1", "w2", members=("w2", "w0", "w1"))) == ["w2"]


def test_all_output_is_that_of_all() -> None:
    output = ShownOutput(everything=True)
    assert shown(output, state("w0", "w1")) == ["w0", "w1", "w2", "w3"]


def test_the_next_one_is_shown_when_the_one_that_was_is_lost() -> None:
    output = ShownOutput(everything=False)
    members = ("w0", "w1", "w2")
    before = state("w0", "w1", "w2", members=members, phase=WorkerPhase.MEMBER)
    output.note_exit(before, WorkerExit("w2", -9))
    output.note_exit(before, WorkerExit("w0", -9))
    # The output of w0 may still be on its way.
    assert shown(output, state("w1", members=members)) == ["w0", "w1"]


def test_when_its_script_has_ended_well_the_rest_of_the_others_is_not_shown_again() -> None:
    output = ShownOutput(everything=False)
    before = state("w0", "w1", members=("w0", "w1"), phase=WorkerPhase.DONE)
    output.note_exit(before, WorkerExit("w0", 0))
    assert shown(output, state("w1", members=("w0", "w1"))) == ["w0"]


def test_a_worker_that_leaves_has_not_come_to_the_end_of_the_script() -> None:
    output = ShownOutput(everything=False)
    before = state("w0", "w1", members=("w0", "w1"), phase=WorkerPhase.DONE, leaving="revoked")
    output.note_exit(before, WorkerExit("w0", 0))
    assert shown(output, state("w1", members=("w0", "w1"))) == ["w0", "w1"]
