"""Another master continues from the decisions of the one before."""

from __future__ import annotations

import msgspec

from hvd_elastic_keras.common import messages
from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.claims import Claims, Holder
from hvd_elastic_keras.master.machine.decisions import Decisions, decisions_of
from hvd_elastic_keras.master.machine.phases import Stopping
from tests.unit.master.membership_driver import INTERRUPTED, Job, running_job


def test_a_round_that_runs_goes_on_as_if_nothing_had_been(three: Job) -> None:
    version, opened = three.state.version, len(three.events("round_opened"))
    three.restart()
    assert three.round_number == 1
    assert three.state.version == version
    assert len(three.events("round_opened")) == opened
    assert [three.worker(w).seniority for w in ("w0", "w1", "w2")] == [0, 1, 2]


def test_the_next_failure_is_answered_as_ever(three: Job) -> None:
    three.kill("w0")
    three.resume("w1", "w2", step=10)
    three.restart()
    three.kill("w1")
    three.resume("w2", step=11)
    assert three.members == ["w2"]
    assert three.state.restarts.used == 2
    assert three.launches[-1] == "w4", "an id is used once"


def test_nobody_is_held_to_account_for_the_time_without_a_master(three: Job) -> None:
    three.later(500.0)
    three.restart()
    three.wait(three.config.heartbeat_timeout_s - 1.0)
    assert three.killed == []
    three.wait(2.0)
    assert three.killed == ["w0", "w1", "w2"], "but from now on they have to answer"


def test_members_that_were_called_are_awaited_at_the_entrance(three: Job) -> None:
    three.kill("w1")
    three.enter("w0", step=10)
    three.restart()
    three.enter("w0", step=10)
    three.enter("w2", step=11)
    assert three.members == ["w2", "w0"]
    assert three.places["w0"].round == 2


def test_places_that_were_given_are_given_again_in_another_round(three: Job) -> None:
    three.kill("w1")
    three.enter("w0", "w2", step=10)
    three.running("w0", step=10)
    three.restart()
    assert three.broken_through == 2, "the store in which its members meet is gone"
    three.enter("w0", "w2", step=10)
    three.running("w0", "w2", step=10)
    assert three.round_number == 3
    assert "the launcher was restarted" in three.last("round_running")["reason"]


def test_a_planned_change_is_carried_on(three: Job) -> None:
    three.add_ready("w3")
    three.enter("w0", step=11)
    three.restart()
    three.enter("w0", "w1", "w2", step=11)
    three.enter("w3", has_state=False)
    three.running("w0", "w1", "w2", "w3", step=11)
    assert three.members == ["w0", "w1", "w2", "w3"]
    assert three.last("round_running")["steps_lost"] == 0


def test_a_job_that_stops_goes_on_stopping() -> None:
    job = running_job(2)
    job.interrupt()
    job.restart()
    assert isinstance(job.state.job, Stopping)
    job.exit("w0", "w1")
    assert job.end == INTERRUPTED


def test_a_training_that_somebody_has_finished_is_finished() -> None:
    job = running_job(2)
    job.done("w0", step=5)
    job.restart()
    job.done("w1", step=5)
    job.exit("w0", "w1")
    assert job.end == act.EndJob(act.Outcome.FINISHED, "finished")


def test_slots_that_were_revoked_stay_revoked(three: Job) -> None:
    three.send(act.RevokeSlots(("w2",), {}, None))
    three.restart()
    assert three.state.target_workers == 2
    assert three.worker("w2").leaving == "slot revoked"


def test_who_saves_a_file_is_known_to_the_next_master(three: Job) -> None:
    holders, done = {"a": Holder("w0", (1, False, 3, 0))}, {"b": (1, True, 9, 1)}
    claims = Claims(holders, done, {"b": "7 /b-7"})
    kept = decisions_of(three.state, claims, {})
    read = messages.decode(messages.encode(kept), Decisions)
    assert (read.holders, read.done) == (holders, done)
    assert read.claims == claims


def test_who_has_saved_a_file_is_read_from_the_journal_of_a_version_that_kept_no_results(
    three: Job,
) -> None:
    kept = msgspec.to_builtins(decisions_of(three.state, Claims({}, {"b": (1, True, 9, 1)}), {}))
    del kept["results"]
    read = messages.decode(msgspec.json.encode(kept), Decisions)
    assert read.claims == Claims({}, {"b": (1, True, 9, 1)})


# --- a journal whose end is damaged ------------------------------------------------------


def test_members_of_a_round_that_the_journal_has_lost_are_in_the_next_one_at_once(
    three: Job,
) -> None:
    three.add("w3")
    known = three.state
    three.ready("w3")
    three.enter("w0", "w1", "w2", step=12)
    three.running("w0", "w1", "w2", "w3", step=12)
    assert three.round_number == 2
    version = three.state.version
    three.restart(known)
    assert three.state.version > version, "workers listen to what is newer"
    assert three.broken_through >= 2
    three.enter("w3", "w0", "w1", "w2", step=13)
    three.running("w0", "w1", "w2", "w3", step=13)
    assert three.round_number > 3
    assert sorted(three.members) == ["w0", "w1", "w2", "w3"]
    assert three.last("round_running")["steps_lost"] == 0
    assert (three.killed, three.at_entrance) == ([], set())


def test_a_first_round_that_the_journal_has_lost_is_formed_again() -> None:
    job = Job(2)
    known = job.state
    job.start(step=5)
    job.restart(known)
    job.enter("w0", "w1", step=6)
    job.running("w0", "w1", step=6)
    assert (job.members, job.round_number > 1) == (["w0", "w1"], True)


def test_a_job_whose_workers_all_start_begins_as_ever_with_a_damaged_journal() -> None:
    job = Job(2)
    job.restart(job.state)
    job.ready("w0")
    assert job.members == [], "another one is coming"
    job.ready("w1")
    assert job.members == ["w0", "w1"]
