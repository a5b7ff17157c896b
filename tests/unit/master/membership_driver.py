"""Drives the pure membership machine event by event, as workers and a launcher would."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from hvd_elastic_keras.common import events, messages, protocol
from hvd_elastic_keras.launchers.base import WorkerExit
from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.claims import Claims
from hvd_elastic_keras.master.machine.decide import decide
from hvd_elastic_keras.master.machine.decisions import (
    Decisions,
    decisions_of,
    restored,
)
from hvd_elastic_keras.master.machine.phases import Confirming
from hvd_elastic_keras.master.machine.state import State, Worker, WorkerPhase
from hvd_elastic_keras.master.machine.value import decided_alike
from hvd_elastic_keras.settings.job_config import JobConfig

SIGKILL = -9
PATIENT: dict[str, Any] = {"heartbeat_timeout_s": 1e9}
"""Settings of a job in which no worker is evicted for silence."""
FINISHED = act.EndJob(act.Outcome.FINISHED, "finished")
MOST_LOST = 8
"""Largest number of journal entries that a damaged end may have held."""
INTERRUPTED = act.EndJob(act.Outcome.STOPPED, "interrupted")


def news_for_workers(state: State) -> object:
    """Returns the values that must not change without a newer version."""
    return state.rounds.pending_through, state.rounds.broken_through, state.stop


def running_job(num_workers: int, micro_batches: int = 8, **settings: Any) -> Job:
    """Returns a job whose workers have all become warm; the first round runs."""
    job = Job(num_workers, micro_batches, **settings)
    job.start()
    return job


class Job:
    """A job of `num_workers` launched workers, a fake clock, and all actions so far.

    Every event passes through `send`, which checks the machine's invariants.
    """

    def __init__(self, num_workers: int = 2, micro_batches: int = 8, **settings: Any) -> None:
        self.config = JobConfig(num_workers=num_workers, **settings)
        self.micro_batches = micro_batches
        self.batch_grows = False
        """Whether the batch grows: each worker then computes `micro_batches`."""
        self.now = self.began = 100.0
        self.state = State()
        self.actions: list[act.Action] = []
        self.places: dict[str, protocol.Assignment] = {}
        """The newest assignment of each worker."""
        self.at_entrance: set[str] = set()
        """Workers whose `EnterRequest` has not been answered."""
        self.send(act.AddWorkers(num_workers))

    # --- time and events -----------------------------------------------------------------

    def send(self, event: act.Event) -> list[act.Action]:
        """Applies an event at the present time."""
        before = self.state
        if isinstance(event, protocol.EnterRequest):
            self.at_entrance.add(event.worker_id)
        self.state, actions = decide(self.config, before, event, self.now)
        self.actions += actions
        self._hold_monotone(before)
        self._hold_time()
        self._hold_slots(before, event)
        self._hold_decisions(before)
        self._take_replies([a for a in actions if isinstance(a, act.Reply)])
        return actions

    def restart(self, known: State | None = None) -> None:
        """Kills the master. Another one continues from the journal; workers that waited ask again.

        Args:
          known: the last state that can be read from the journal, if its end is damaged.
        """
        before = self.state
        kept = decisions_of(known or before, Claims(), {})
        written = messages.decode(messages.encode(kept), Decisions)
        assert written == kept
        away_s = self.now - ((known or before).spent.until or self.now)
        lost = 0 if known is None else MOST_LOST
        self.state, actions = restored(
            self.config, written, self.now, away_s=away_s, most_lost=lost
        )
        self.actions += actions
        self.at_entrance = set()
        if known:
            before = replace(before, training=known.training)
        self._hold_monotone(before)
        self._hold_time()
        self._take_replies([a for a in actions if isinstance(a, act.Reply)])

    def wait(self, seconds: float) -> list[act.Action]:
        """Lets time pass, then ticks once."""
        self.now += seconds
        return self.send(act.Tick())

    def later(self, seconds: float) -> None:
        """Lets time pass; nothing happens in it."""
        self.now += seconds

    def add(self, *worker_ids: str) -> None:
        """Requests more workers, which are launched."""
        self.send(act.AddWorkers(len(worker_ids)))
        assert self.launches[-len(worker_ids) :] == list(worker_ids)

    def remove(self, worker_id: str) -> None:
        """Requests that a worker leaves."""
        self.send(act.RemoveWorker(worker_id))

    def interrupt(self) -> None:
        """Interrupts the job."""
        self.send(act.StopJob("interrupted"))

    def joined(self, worker_id: str, training: int | None = None) -> None:
        """Makes a worker warm for a training: its next one, if none is given."""
        training = training or self.training_of(worker_id) + 1
        self.send(
            protocol.Joined(
                worker_id=worker_id,
                training=training,
                pid=1,
                num_micro_batches=self.micro_batches,
                each=self.batch_grows,
                warm_up_s=1.5,
            )
        )

    def enter(
        self,
        *worker_ids: str,
        step: int = 0,
        progress: int | None = None,
        has_state: bool = True,
        failure: str = "",
        training: int | None = None,
        idle_s: float = 0.0,
    ) -> None:
        """Brings workers to the entrance, from the round they were last assigned to."""
        for worker_id in worker_ids:
            place = self.places.get(worker_id)
            self.send(
                protocol.EnterRequest(
                    worker_id=worker_id,
                    training=training or max(1, self.training_of(worker_id)),
                    from_round=place.round if place else 0,
                    has_state=has_state,
                    progress=step if progress is None else progress,
                    step=step,
                    failure=failure,
                    idle_s=idle_s,
                )
            )

    def ready(self, *worker_ids: str) -> None:
        """Makes new workers warm, and brings them to the entrance."""
        for worker_id in worker_ids:
            self.joined(worker_id)
            self.enter(worker_id, has_state=False)

    def add_ready(self, *worker_ids: str) -> None:
        """Adds workers, and makes them warm."""
        self.add(*worker_ids)
        self.ready(*worker_ids)

    def lose_contact(self, worker_id: str, step: int = 0) -> None:
        """Brings a member to the entrance because its collective has failed."""
        self.enter(worker_id, step=step, failure="a collective failed")

    def resume(self, *worker_ids: str, step: int = 0) -> None:
        """Lets these workers enter a round and run it. Some may be at the entrance already."""
        self.enter(*(w for w in worker_ids if w not in self.at_entrance), step=step)
        self.running(*worker_ids, step=step)

    def running(self, *worker_ids: str, step: int = 0, phase: str = "training") -> None:
        """Lets members confirm that they run."""
        for worker_id in worker_ids:
            number = self.places[worker_id].round
            self.send(protocol.Running(worker_id=worker_id, round=number, step=step, phase=phase))

    def heartbeat(
        self,
        *worker_ids: str,
        step: int = 0,
        phase: str = "training",
        in_collective: bool = False,
        computing: bool = False,
    ) -> None:
        """Sends heartbeats of workers."""
        for worker_id in worker_ids:
            self.send(
                protocol.Heartbeat(
                    worker_id=worker_id,
                    training=self.training_of(worker_id),
                    round=1,
                    step=step,
                    progress=step,
                    phase=phase,
                    in_collective=in_collective,
                    computing=computing,
                )
            )

    def kill(self, *worker_ids: str) -> None:
        """Reports to the master that workers ended by SIGKILL."""
        for worker_id in worker_ids:
            self.send(WorkerExit(worker_id, SIGKILL))

    def fail(self, *worker_ids: str) -> None:
        """Reports to the master that workers ended by an error of their own."""
        for worker_id in worker_ids:
            self.send(WorkerExit(worker_id, 1))

    def exit(self, *worker_ids: str) -> None:
        """Reports to the master that workers ended with exit code 0."""
        for worker_id in worker_ids:
            self.send(WorkerExit(worker_id, 0))

    def sigterm(self, worker_id: str) -> None:
        """Reports that a worker got SIGTERM, as the worker does."""
        self.send(protocol.Leaving(worker_id=worker_id, reason="SIGTERM"))

    def done(
        self,
        *worker_ids: str,
        step: int = 0,
        training: int | None = None,
        raised: bool = False,
    ) -> None:
        """Reports that workers have finished their training, or that an error has ended it."""
        for worker_id in worker_ids:
            number = training or self.training_of(worker_id)
            done = protocol.Done(worker_id=worker_id, training=number, step=step, raised=raised)
            self.send(done)

    def start(self, num_workers: int | None = None, step: int = 0) -> None:
        """Makes all launched workers warm, and runs the first round."""
        ids = self.workers if num_workers is None else self.workers[:num_workers]
        self.ready(*ids)
        self.running(*self.members, step=step)

    # --- what is known and was decided ---------------------------------------------------

    @property
    def workers(self) -> list[str]:
        """The ids of the workers that the master knows, oldest first."""
        return sorted(self.state.workers, key=lambda w: int(w[1:]))

    @property
    def members(self) -> list[str]:
        """The members of the newest assigned round, by rank."""
        forming, running = self.state.rounds.forming, self.state.rounds.running
        if isinstance(forming, Confirming):
            return list(forming.members)
        return list(running.members) if running else []

    @property
    def spares(self) -> list[str]:
        """The warm workers without a rank, oldest first."""
        return [w for w in self.workers if self.worker(w).phase is WorkerPhase.READY]

    @property
    def pending_through(self) -> int:
        """The newest round that all leave after the same step; 0 if there is none."""
        return self.state.rounds.pending_through

    @property
    def broken_through(self) -> int:
        """The newest round whose collectives cannot complete; 0 if there is none."""
        return self.state.rounds.broken_through

    @property
    def round_number(self) -> int:
        """The running round; 0 if none runs."""
        return self.state.rounds.running.number if self.state.rounds.running else 0

    def training_of(self, worker_id: str) -> int:
        """Returns the training that a worker has last begun; 0 if it is not known."""
        worker = self.state.workers.get(worker_id)
        return worker.training if worker else 0

    def worker(self, worker_id: str) -> Worker:
        return self.state.workers[worker_id]

    def of(self, kind: type) -> list[Any]:
        """Returns all actions of a type."""
        return [a for a in self.actions if isinstance(a, kind)]

    @property
    def launches(self) -> list[str]:
        return [a.worker_id for a in self.of(act.Launch)]

    @property
    def killed(self) -> list[str]:
        return [a.worker_id for a in self.of(act.Kill)]

    @property
    def said(self) -> list[str]:
        return [a.text for a in self.of(act.Say)]

    @property
    def has_ended(self) -> bool:
        return self.end is not None

    @property
    def failure(self) -> str:
        """The reason for which the job has failed."""
        assert self.end is not None, "the job has not ended"
        assert not self.end.succeeded
        return self.end.reason

    @property
    def end(self) -> act.EndJob | None:
        ends = self.of(act.EndJob)
        assert len(ends) <= 1, "a job ends once"
        return ends[0] if ends else None

    def events(self, name: str) -> list[dict[str, Any]]:
        """Returns the fields of all entries of `events.jsonl` with this name."""
        entries = [a.entry for a in self.of(act.Emit)]
        return [events.fields_of(e) for e in entries if events.name_of(type(e)) == name]

    def last(self, name: str) -> dict[str, Any]:
        """Returns the fields of the newest of these entries."""
        return self.events(name)[-1]

    def told_to_leave(self, worker_id: str) -> list[str]:
        """Returns the reasons with which a worker was sent away from the entrance."""
        replies = [a.reply for a in self.of(act.Reply) if a.worker_id == worker_id]
        return [reply.leave for reply in replies if reply.leave]

    def told_over(self, worker_id: str) -> int:
        """Returns how often a worker was told that the training of its request is over."""
        replies = [a.reply for a in self.of(act.Reply) if a.worker_id == worker_id]
        return sum(reply.training_over for reply in replies)

    # --- invariants ----------------------------------------------------------------------

    def _hold_monotone(self, before: State) -> None:
        assert self.state.training.number >= before.training.number
        assert self.state.version >= before.version
        for name in ("last_number", "pending_through", "broken_through"):
            assert getattr(self.state.rounds, name) >= getattr(before.rounds, name), name
        if news_for_workers(self.state) != news_for_workers(before):
            assert self.state.version > before.version

    def _hold_decisions(self, before: State) -> None:
        """Asserts that exactly the events that are only observed leave the journal unchanged."""
        old, new = (decisions_of(state, Claims(), {}) for state in (before, self.state))
        assert decided_alike(before, self.state) == old.equal(new)

    def _hold_time(self) -> None:
        """Asserts that each second since the job began belongs to a part, also without a master."""
        spent = self.state.spent
        assert spent.until == self.now
        assert abs(spent.total_s - (self.now - self.began)) < 1e-6
        assert min(spent.seconds.values()) >= 0.0

    def _hold_slots(self, before: State, event: act.Event) -> None:
        for host, granted in self.state.slots.items():
            staying = [w for w in self.state.workers.values() if w.host == host and not w.leaving]
            assert len(staying) <= granted, "nobody is kept up beyond the granted slots"
        asked = isinstance(event, (act.RevokeSlots, act.GrantSlots, act.RemoveWorker))
        if isinstance(event, WorkerExit) and event.worker_id in before.workers:
            asked = bool(before.workers[event.worker_id].leaving)
        if asked:
            for name in ("used", "last_failure", "start_failures", "own_errors"):
                now, then = getattr(self.state.restarts, name), getattr(before.restarts, name)
                assert now == then, "it is no failure"

    def _take_replies(self, replies: list[act.Reply]) -> None:
        assigned = {}
        for action in replies:
            reply = action.reply
            kinds = (bool(reply.assignment), bool(reply.leave), reply.training_over)
            assert sum(kinds) == 1, "a reply is one of the three"
            if reply.training_over:
                assert action.worker_id in self.at_entrance, "only who waits is sent on"
            if reply.assignment:
                assert action.worker_id in self.at_entrance, "only who waits gets a place"
                assert action.worker_id not in assigned, "one place each"
                assigned[action.worker_id] = reply.assignment
            self.at_entrance.discard(action.worker_id)
        if assigned:
            self._hold_assignment(assigned)
        self.places.update(assigned)

    def _hold_assignment(self, assigned: dict[str, protocol.Assignment]) -> None:
        forming = self.state.rounds.forming
        assert isinstance(forming, Confirming)
        numbers = {place.round for place in assigned.values()}
        assert numbers == {forming.number}, "all replies are for the round that forms"
        older = [place.round for place in self.places.values()]
        assert forming.number > max(older, default=0), "round numbers increase"
        by_rank = sorted(assigned, key=lambda w: assigned[w].rank)
        assert [assigned[w].rank for w in by_rank] == list(range(len(assigned)))
        assert tuple(by_rank) == forming.members
        assert all(place.members == forming.members for place in assigned.values())
        assert all(place.size == len(assigned) for place in assigned.values())
        assert set(assigned) <= set(self.state.workers), "members are alive"
        assert not any(self.worker(w).leaving for w in assigned), "members stay"
        trainings = {self.worker(w).training for w in assigned}
        assert trainings == {self.state.training.number}, "members are at the same training"
        useful = 0 if self.batch_grows else self.micro_batches
        assert len(assigned) <= min(self.config.max_workers, useful or len(assigned))
        if not self.state.training.finishing:
            assert len(assigned) >= self.config.min_workers
