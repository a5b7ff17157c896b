"""One transition of the state machine: a draft of the next state, and the actions so far.

The functions below `Transition` say how many workers can train, must train, and are coming, and
which are silent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from hvd_elastic_keras.common import events, protocol
from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.phases import Active, Ended, RoundPhase
from hvd_elastic_keras.master.machine.state import State, Worker, WorkerPhase, reason_to_stop
from hvd_elastic_keras.master.machine.time_spent import passed, with_stall
from hvd_elastic_keras.settings.job_config import JobConfig


class Draft(dict[str, Worker]):
    """Workers by id. The ids of those that differ from before are noted in `changed`."""

    def __init__(self, before: Mapping[str, Worker]) -> None:
        super().__init__(before)
        self.changed: set[str] = set()

    def __setitem__(self, worker_id: str, worker: Worker) -> None:
        self.changed.add(worker_id)
        super().__setitem__(worker_id, worker)

    def __delitem__(self, worker_id: str) -> None:
        self.changed.add(worker_id)
        super().__delitem__(worker_id)


class Transition:
    """The parts of a state, to be replaced one by one at time `now`, and the actions so far.

    The functions of this folder that take a `Transition` change it. Each handles one concern.
    """

    def __init__(self, config: JobConfig, state: State, now: float) -> None:
        self.config = config
        self.now = now
        self.actions: list[act.Action] = []
        self.job = state.job
        self.workers = Draft(state.workers)
        self.next_worker_number = state.next_worker_number
        self.slots = dict(state.slots)
        self.training = state.training
        self.rounds = state.rounds
        self.restarts = state.restarts
        self._spent = passed(state, now)
        self._before = state

    def result(self) -> tuple[State, list[act.Action]]:
        """Returns the next state and the actions; the version grows if workers have to know."""
        state = State(
            version=self._before.version,
            job=self.job,
            workers=self.workers,
            next_worker_number=self.next_worker_number,
            slots=self.slots,
            training=self.training,
            rounds=self.rounds,
            restarts=self.restarts,
            spent=with_stall(self._spent, self._before.rounds, self.rounds, self.now),
        )
        if _news(state) != _news(self._before) or self._other_news():
            state = replace(state, version=state.version + 1)
        return state, self.actions

    def _other_news(self) -> bool:
        """Whether a worker has come or gone, or there is something else to tell it."""
        before, after = self._before.workers, self.workers
        return any(_told(before.get(w)) != _told(after.get(w)) for w in after.changed)

    # --- what is asked for most ----------------------------------------------------------

    @property
    def phase(self) -> RoundPhase:
        """The phase of the newest round."""
        return self.rounds.phase

    @phase.setter
    def phase(self, phase: RoundPhase) -> None:
        self.rounds = replace(self.rounds, phase=phase)

    @property
    def stop(self) -> str:
        """Why the job stops or has ended; empty if it does not."""
        return reason_to_stop(self.job)

    @property
    def stopping(self) -> bool:
        """Whether the job stops or has ended."""
        return not isinstance(self.job, Active)

    @property
    def ended(self) -> bool:
        """Whether nothing is left to decide."""
        return isinstance(self.job, Ended)

    @property
    def staying(self) -> list[Worker]:
        """Workers that nobody has asked to leave."""
        return [worker for worker in self.workers.values() if not worker.leaving]

    def change_worker(self, worker_id: str, **changes: Any) -> None:
        """Replaces fields of one worker."""
        self.workers[worker_id] = replace(self.workers[worker_id], **changes)

    def take_worker(self, worker_id: str) -> Worker | None:
        """Removes and returns a worker; None if there is no such worker."""
        worker = self.workers.get(worker_id)
        if worker is not None:
            del self.workers[worker_id]
        return worker

    # --- actions -------------------------------------------------------------------------

    def emit(self, entry: events.Entry) -> None:
        """Adds an entry to `events.jsonl`."""
        self.actions.append(act.Emit(entry))

    def say(self, text: str) -> None:
        """Shows a line to the person at the terminal."""
        self.actions.append(act.Say(text))

    def dismiss(self, worker_id: str, reason: str) -> None:
        """Sends away a worker that asked for a place."""
        reply = protocol.EnterReply(leave=reason)
        self.actions.append(act.Reply(worker_id, reply))

    def tell_over(self, entry: protocol.EnterRequest) -> None:
        """Sends on a worker that asked for a place in a training that is finished."""
        reply = protocol.EnterReply(training_over=True)
        self.actions.append(act.Reply(entry.worker_id, reply, entry.training))

    def give_place(self, entry: protocol.EnterRequest, place: protocol.Assignment) -> None:
        """Gives a worker the place that it asked for."""
        reply = protocol.EnterReply(assignment=place)
        self.actions.append(act.Reply(entry.worker_id, reply, entry.training))


def _news(state: State) -> object:
    return state.rounds.pending_through, state.rounds.broken_through, state.stop


def _told(worker: Worker | None) -> object:
    return None if worker is None else (worker.leaving, worker.told_stalled)


def useful_workers(t: Transition) -> int:
    """Returns how many workers the micro-batches of a step give work to; 0 is no limit."""
    return 0 if t.training.batch_grows else t.training.num_micro_batches or 0


def most_members(t: Transition) -> int:
    """Returns the largest number of members of a round."""
    return min(t.config.max_workers, useful_workers(t) or t.config.max_workers)


def least_members(t: Transition) -> int:
    """Returns the smallest number of members with which a round begins."""
    # Once a worker has finished, the others only have to finish, too.
    return 1 if t.training.finishing else t.config.min_workers


def more_are_coming(t: Transition) -> bool:
    """Whether more workers may soon come to the entrance of the current training."""
    return any(_comes(t, worker) for worker in t.workers.values() if not worker.entry)


def _comes(t: Transition, worker: Worker) -> bool:
    if worker.phase is WorkerPhase.DONE:
        # It is in the part of the script before the current training.
        return worker.training < t.training.number and not worker.leaving
    return worker.phase in (WorkerPhase.STARTING, WorkerPhase.READY) and not worker.pending


def staying_members(t: Transition) -> list[str]:
    """Members of the running round that neither leave nor have finished, by rank."""
    running = t.rounds.running
    return [m for m in (running.members if running else ()) if _still_trains(t, m)]


def _still_trains(t: Transition, worker_id: str) -> bool:
    worker = t.workers.get(worker_id)
    return worker is not None and not worker.leaving and worker.phase is not WorkerPhase.DONE


def waiting_workers(t: Transition) -> list[str]:
    """Warm workers at the entrance that are not called to a round, oldest first."""
    ready = [w for w in t.staying if w.entry and _is_ready(t, w)]
    return [w.worker_id for w in sorted(ready, key=lambda w: w.number)]


def _is_ready(t: Transition, worker: Worker) -> bool:
    return worker.phase is WorkerPhase.READY and worker.training == t.training.number


def is_silent(t: Transition, worker: Worker) -> bool:
    """Whether a worker was heard of before, but not for `heartbeat_timeout_s`."""
    heard_at = worker.last_heartbeat
    return heard_at is not None and t.now - heard_at > t.config.heartbeat_timeout_s


def is_known_to_run(t: Transition, worker: Worker) -> bool:
    """Whether somebody reports that the process of a worker runs.

    Such reports have to be repeated. They end when the process stops or its host is cut off: the
    worker is then found after `heartbeat_timeout_s`, like any other.
    """
    told_at = worker.alive_at
    return told_at is not None and t.now - told_at <= t.config.heartbeat_timeout_s / 2
