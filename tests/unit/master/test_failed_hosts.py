"""Hosts on which no worker can be started, and hosts that are lost with all their workers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from hvd_elastic_keras.cli.remote_workers import HostWatch
from hvd_elastic_keras.common import events
from hvd_elastic_keras.launchers.discovery import FixedHosts
from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.actions import Outcome
from hvd_elastic_keras.master.machine.decide import decide
from hvd_elastic_keras.master.machine.phases import Entering, Running
from hvd_elastic_keras.master.machine.state import Rounds, State, Training, Worker, WorkerPhase
from hvd_elastic_keras.settings.job_config import JobConfig

CONFIG = JobConfig(num_workers=0, max_workers=6, heartbeat_timeout_s=15.0, awaits_joiners=True)


class Job:
    """The state of a job on several hosts, and the last decisions."""

    def __init__(self, state: State | None = None) -> None:
        self.now = 100.0
        self.state = state or State()
        self.actions: Sequence[act.Action] = []
        self.watch = HostWatch(
            CONFIG,
            FixedHosts({}),
            state=lambda: self.state,
            dispatch=self.send,
            now=lambda: self.now,
        )

    def send(self, event: act.Event) -> None:
        self.state, self.actions = decide(CONFIG, self.state, event, self.now)

    def look(self, hosts: dict[str, int], after_s: float = 0.0) -> None:
        """Applies the result of a new look for hosts."""
        self.now += after_s
        self.watch.apply(hosts)

    def heard_of(self, worker_id: str) -> None:
        worker = replace(self.state.workers[worker_id], last_heartbeat=self.now)
        workers = {**self.state.workers, worker_id: worker}
        self.state = replace(self.state, workers=workers)

    @property
    def there(self) -> dict[str, str]:
        return {w.worker_id: w.host for w in self.state.workers.values() if not w.leaving}

    @property
    def said(self) -> list[str]:
        return [a.text for a in self.actions if isinstance(a, act.Say)]


def test_workers_start_where_hosts_are_found_and_leave_where_they_are_gone() -> None:
    job = Job()
    job.look({"a": 1, "b": 1})
    assert job.there == {"w0": "a", "w1": "b"}
    job.look({"a": 1, "b": 2})
    assert job.there == {"w0": "a", "w1": "b", "w2": "b"}
    job.look({"b": 2})
    assert job.there == {"w1": "b", "w2": "b"}
    assert job.state.slots["a"] == 0


def test_a_host_without_workers_rests_for_longer_each_time_and_comes_back() -> None:
    job, hosts = Job(), {"a": 1, "b": 2}
    job.look(hosts)
    job.heard_of("w0")
    for pause_s, workers in ((5.0, ("w3", "w4")), (10.0, ("w5", "w6"))):
        job.watch.failed(list(job.there)[-1], "b", "b: there is no such host")
        assert job.there == {"w0": "a"}
        assert job.said == [f"b: there is no such host; it is tried again in {pause_s:.0f} s"]
        job.look(hosts, pause_s - 0.1)
        assert job.there == {"w0": "a"}
        job.look(hosts, 0.2)
        assert job.there == {"w0": "a", **dict.fromkeys(workers, "b")}
    job.heard_of("w5")
    job.look(hosts)
    job.watch.failed("w6", "b", "b: ssh does not reach it")
    assert job.said == ["b: ssh does not reach it; it is tried again in 5 s"]
    assert job.there == {"w0": "a", "w5": "b"}


def test_a_worker_that_was_not_waited_for_any_more_says_nothing_of_its_host() -> None:
    job = Job()
    job.look({"a": 1, "b": 1})
    job.watch.failed("w7", "b", "b: lost")
    assert job.there == {"w0": "a", "w1": "b"}
    job.look({"a": 1, "b": 2})
    assert list(job.there) == ["w0", "w1", "w2"]


def test_a_job_of_which_no_host_works_at_all_ends_with_what_the_last_one_said() -> None:
    job = Job()
    job.look({"a": 1, "b": 1})
    job.watch.failed("w0", "a", "a: there is no such host")
    assert not job.state.ended
    job.watch.failed("w1", "b", "b: there is no python on it")
    (end,) = (a for a in job.actions if isinstance(a, act.EndJob))
    reason = "no worker could be started: b: there is no python on it"
    assert end == act.EndJob(Outcome.FAILED, reason)


def test_a_start_that_the_stop_of_a_job_has_ended_says_nothing_against_its_host() -> None:
    job = Job()
    job.look({"a": 1})
    job.send(act.Started("w0", "a", 4000))
    job.send(act.StopJob("interrupted"))
    assert act.Kill("w0") in job.actions, "its ssh client"
    job.watch.failed("w0", "a", "a: the connection was closed")
    assert job.said == []
    (end,) = (a for a in job.actions if isinstance(a, act.EndJob))
    assert end == act.EndJob(Outcome.STOPPED, "interrupted")


def test_the_end_of_a_worker_that_never_came_is_told_in_the_events() -> None:
    job = Job()
    job.look({"a": 1, "b": 1})
    job.watch.failed("w1", "b", "b: lost")
    entries = [a.entry for a in job.actions if isinstance(a, act.Emit)]
    exited, revoked = entries
    assert isinstance(exited, events.WorkerExited)
    assert (exited.worker_id, exited.failed) == ("w1", True)
    assert isinstance(revoked, events.SlotsRevoked)
    assert (revoked.host, revoked.slots, revoked.workers) == ("b", 1, ["w1"])


def member(number: int, host: str, heard_at: float) -> Worker:
    return Worker(
        f"w{number}",
        0.0,
        phase=WorkerPhase.MEMBER,
        host=host,
        seniority=number,
        training=1,
        last_heartbeat=heard_at,
    )


def training_on_two_hosts(*silent_since: float) -> Job:
    """Returns two workers on a that are not silent, and some on b last heard at these times."""
    workers = [member(0, "a", 100.0), member(1, "a", 100.0)]
    workers += [member(2 + n, "b", at) for n, at in enumerate(silent_since)]
    ids = tuple(w.worker_id for w in workers)
    return Job(
        State(
            workers={w.worker_id: w for w in workers},
            next_worker_number=len(workers),
            slots={"a": 2, "b": len(silent_since)},
            training=Training(1, num_micro_batches=8),
            rounds=Rounds(Running(1, ids, 0.0), last_number=1, last_members=ids),
        )
    )


def test_a_host_that_is_lost_costs_one_round_for_all_of_its_workers() -> None:
    job = training_on_two_hosts(84.9, 86.0, 97.0)
    job.send(act.Tick())
    entering = job.state.rounds.phase
    assert isinstance(entering, Entering)
    assert set(entering.called) == {"w0", "w1"}
    gone = [a.worker_id for a in job.actions if isinstance(a, act.Kill)]
    assert gone == ["w2", "w3", "w4"]
    assert job.state.restarts.used == 1
    assert [w for w, host in job.there.items() if host == "b"] == ["w5", "w6", "w7"]
    assert sum(isinstance(a, act.CloseRendezvous) for a in job.actions) == 1


@pytest.mark.parametrize("heard_at", [97.1, 100.0])
def test_who_still_speaks_is_not_lost_with_another_worker_of_its_host(heard_at: float) -> None:
    job = training_on_two_hosts(84.9, heard_at)
    job.send(act.Tick())
    assert [a.worker_id for a in job.actions if isinstance(a, act.Kill)] == ["w2"]
    assert "w3" in job.there
