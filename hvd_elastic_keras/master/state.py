"""The master's knowledge as frozen values."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping

from hvd_elastic_keras import protocol
from hvd_elastic_keras.master.reasons import Reason

LOCALHOST = "localhost"
"""The only host of the local launcher."""


class WorkerPhase(str, enum.Enum):
    """Life of a worker, as the master sees it."""

    STARTING = "starting"
    """Launched; importing and tracing."""
    READY = "ready"
    """Warm, waiting for a round or, if the world is full, a spare."""
    MEMBER = "member"
    """Has a rank in the running round, or is called to the next one."""
    DONE = "done"
    """Has finished its training, or has been told that it is over; its script goes on."""


@dataclasses.dataclass(frozen=True)
class Worker:
    """One process incarnation."""

    worker_id: str
    launched_at: float
    phase: WorkerPhase = WorkerPhase.STARTING
    host: str = LOCALHOST
    pid: int | None = None
    seniority: int | None = None
    training: int = 0
    """The training it has last begun; 0 before the first."""
    step: int = 0
    activity: str = ""
    last_heartbeat: float | None = None
    ready_at: float | None = None
    entry: protocol.EnterRequest | None = None
    """The request with which it waits at the entrance; None if it does not wait there."""
    told_spare: bool = False
    """Whether people have been told that it waits because the world is full."""
    leaving: str = ""
    """Why it leaves after the current step; empty if it stays."""
    leaving_since: float | None = None
    leave_within_s: float | None = None
    """How long it may take to leave before it is killed; None if nobody has set a limit."""

    @property
    def number(self) -> int:
        """Order in which workers were launched."""
        return int(self.worker_id.lstrip("w"))


@dataclasses.dataclass(frozen=True)
class Forming:
    """A round that is being put together.

    `called` workers are awaited at the entrance; once all are there, `members` get their
    assignments and confirm one by one that they run.
    """

    number: int
    reasons: tuple[Reason, ...]
    opened_at: float
    called: frozenset[str]
    size_before: int
    stalled_since: float | None = None
    """When training stood still; None while it still runs."""
    first_entry_at: float | None = None
    members: tuple[str, ...] = ()
    places: Mapping[str, protocol.Assignment] = dataclasses.field(default_factory=dict)
    assigned_at: float | None = None
    running: frozenset[str] = frozenset()
    root_step: int = 0


@dataclasses.dataclass(frozen=True)
class Round:
    """A round in which the members train."""

    number: int
    members: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class State:
    """Everything the master decides from."""

    slots: Mapping[str, int] = dataclasses.field(default_factory=lambda: {LOCALHOST: 0})
    """Places that are granted, by host: as many workers are kept up there."""
    version: int = 1
    training: int = 0
    """The newest training that any worker has begun. Rounds are formed for this one only."""
    last_round_before: int = 0
    """The newest round of earlier trainings."""
    workers: Mapping[str, Worker] = dataclasses.field(default_factory=dict)
    next_worker_number: int = 0
    next_seniority: int = 0
    num_micro_batches: int | None = None
    """Of a global batch, or of each worker; 0 if the training has none."""
    batch_grows: bool = False
    """Whether each worker computes so many, however many there are."""
    running: Round | None = None
    forming: Forming | None = None
    last_round: int = 0
    pending_through: int = 0
    broken_through: int = 0
    newest_step: int = 0
    reading: protocol.InputPosition | None = None
    """Where members read, if what they read can only be read from the front."""
    restarts_used: int = 0
    start_failures: int = 0
    """Workers in a row that failed before they were ready."""
    own_errors: int = 0
    """Workers that ended themselves with an error since step `own_errors_step` was reached."""
    own_errors_step: int = 0
    last_failure: str = ""
    last_failed_worker: str = ""
    waiting_since: float | None = None
    finishing: bool = False
    """Whether a worker has finished the current training."""
    lost_afterwards: tuple[str, ...] = ()
    """Workers that were lost since they finished the current training, with the causes."""
    errors_afterwards: tuple[tuple[int, str, str], ...] = ()
    """Seniority, worker id and cause of those of them that ended by an error of their own."""
    script_ended: bool = False
    """Whether a worker has come to the end of its script since the current training."""
    stop: str = ""
    ended: bool = False

    @property
    def target_workers(self) -> int:
        """Workers that are kept up: the slots of all hosts."""
        return sum(self.slots.values())


def training_is_over(state: State, workers: Mapping[str, Worker]) -> bool:
    """Whether somebody has finished the current training and nobody still has to.

    Who holds no state of it has nothing to finish: spares, and joiners at the entrance.
    """
    return state.finishing and all(
        worker.phase is not WorkerPhase.MEMBER
        or (worker.entry is not None and (worker.leaving or not worker.entry.has_state))
        for worker in workers.values()
        if worker.training == state.training
    )


def reading_of(state: State) -> protocol.InputPosition | None:
    """Where those read who hold a state. If all of them are lost, a checkpoint will say."""
    held = any(worker.seniority is not None for worker in state.workers.values())
    return state.reading if held else None


def update_for(state: State, worker_id: str) -> protocol.WorkerUpdate:
    """What one worker has to know now."""
    worker = state.workers.get(worker_id)
    return protocol.WorkerUpdate(
        version=state.version,
        pending_through=state.pending_through,
        broken_through=state.broken_through,
        stop=state.stop,
        leave=worker.leaving if worker else "this worker is no longer part of the job",
    )
