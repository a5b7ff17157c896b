"""The state of the master, as frozen values."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from hvd_elastic_keras.common import protocol
from hvd_elastic_keras.common.goodput import Spent
from hvd_elastic_keras.launchers.base import LOCALHOST
from hvd_elastic_keras.master.machine.phases import (
    Active,
    Confirming,
    Ended,
    Entering,
    JobPhase,
    RoundPhase,
    Running,
    Waiting,
)
from hvd_elastic_keras.master.machine.reasons import Departure
from hvd_elastic_keras.master.machine.value import Observed, Value

START_TOLD_S = 10.0
"""People are told of a worker that is still starting after this many seconds, and each time that
this time has doubled."""


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


class Worker(Value, frozen=True):
    """One process incarnation."""

    worker_id: str
    launched_at: Observed[float] = 0.0
    phase: WorkerPhase = WorkerPhase.STARTING
    host: str = LOCALHOST
    slot: int = 0
    """Its place on the host, from 0; no two workers there have the same."""
    pid: int | None = None
    pending: Observed[str | None] = None
    """The reason given by the last `actions.Pending`. No time limit runs before it is None."""
    seniority: int | None = None
    training: int = 0
    """The training it has last begun; 0 before the first."""
    raised_in: int = 0
    """The training that an error of callbacks has ended last, on all workers; 0 if none."""
    step: Observed[int] = 0
    activity: Observed[str] = ""
    cores: Observed[float] = 0.0
    memory_bytes: Observed[int] = 0
    in_collective: Observed[bool] = False
    """Whether it waits with the others, or is about to."""
    computing: Observed[bool] = False
    """Whether it computes its part of a step."""
    longest_part_s: Observed[float] = 0.0
    """The longest time for which it was seen to compute a part of a step."""
    point: Observed[tuple[object, ...]] = ()
    """The point of its training at which it was last heard of."""
    at_point_since: Observed[float | None] = None
    told_stalled: Observed[bool] = False
    """Whether people know that it holds the others up at this point."""
    start_told_s: Observed[float] = START_TOLD_S
    """People are told if it is still starting after this many seconds."""
    last_heartbeat: Observed[float | None] = None
    alive_at: Observed[float | None] = None
    """When somebody else last reported that its process runs."""
    told_silent: Observed[bool] = False
    """Whether people know that it is silent, though its process runs."""
    ready_at: Observed[float | None] = None
    entry: Observed[protocol.EnterRequest | None] = None
    """The request with which it waits at the entrance; None if it does not wait there."""
    told_spare: bool = False
    """Whether people have been told that it waits because the world is full."""
    by_itself: bool = False
    """Whether somebody other than the launcher has started it, and replaces it if it fails."""
    leaving: str = ""
    """Why it leaves after the current step; empty if it stays."""
    leaving_since: Observed[float | None] = None
    leave_within_s: float | None = None
    """How long it may take to leave before it is killed; None if nobody has set a limit."""

    @property
    def number(self) -> int:
        """Order in which workers were launched."""
        return int(self.worker_id.lstrip("w"))


class Finish(Value, frozen=True):
    """The course of the job since a worker finished the current training."""

    lost: Observed[tuple[Departure, ...]] = ()
    """Workers that have failed since."""
    errors: Observed[Mapping[int, Departure]] = msgspec.field(default_factory=dict)
    """Workers that ended by an error of their own after they had finished, by seniority."""
    script_ended: bool = False
    """Whether a worker has come to the end of its script."""


class Training(Value, frozen=True):
    """The newest training that any worker has begun. Rounds are formed for this one only."""

    number: int = 0
    """Counted from 1; 0 before the first."""
    rounds_before: int = 0
    """The newest round of earlier trainings."""
    num_micro_batches: int | None = None
    """Micro-batches of a global batch, or of each worker; 0 if the training has none."""
    batch_grows: bool = False
    """Whether each worker computes `num_micro_batches`, however many workers there are."""
    newest_step: Observed[int] = 0
    repeats_until: Observed[int] = 0
    """Steps before this one were taken already, before a failure."""
    reading: Observed[protocol.InputPosition | None] = None
    """The position at which members read, if their input can only be read from the front."""
    finish: Finish | None = None
    """None until a worker has finished the training."""

    @property
    def progress(self) -> tuple[int, int]:
        """Grows whenever training goes on."""
        return self.number, self.newest_step

    @property
    def finishing(self) -> bool:
        """Whether a worker has finished it."""
        return self.finish is not None


class Rounds(Value, frozen=True):
    """The phase of the newest round, and what workers are told of the rounds so far."""

    phase: RoundPhase = Waiting()
    last_number: int = 0
    last_members: tuple[str, ...] = ()
    """Worker ids by rank of the newest round that has members; empty before the first."""
    next_seniority: int = 0
    pending_through: int = 0
    broken_through: int = 0
    waiting_since: Observed[float | None] = None
    """When it became known that there are too few workers; None if there are enough."""

    @property
    def running(self) -> Running | None:
        """The round in which workers train, also while the next one is put together."""
        phase = self.phase
        if isinstance(phase, Entering):
            return phase.still_running
        return phase if isinstance(phase, Running) else None

    @property
    def forming(self) -> Entering | Confirming | None:
        """The round that is put together, if there is one."""
        return self.phase if isinstance(self.phase, Entering | Confirming) else None


class Replacement(Value, frozen=True):
    """A worker that was started in place of a failed one."""

    at: Observed[float] = 0.0
    progress: Observed[tuple[int, int]] = (0, 0)
    """See `Training.progress`."""
    host: Observed[str] = ""
    """The host on which the worker failed; empty if that is not known any more."""
    failed: Observed[str] = ""
    """Id of the failed worker, if it is known."""


class Restarts(Value, frozen=True):
    """Failures so far, and the replacements that they took."""

    replacements: tuple[Replacement, ...] = ()
    """The replacements that count, the oldest first."""
    start_failures: Observed[int] = 0
    """Times in a row that a worker, or several together, failed before being ready."""
    start_failed_at: Observed[float | None] = None
    """When the last of these failures happened."""
    start_errors: Observed[int] = 0
    """Workers in a row that ended themselves before they were ready."""
    own_errors: Observed[int] = 0
    """Workers that had been ready and ended themselves with an error since step `own_errors_step`
    was reached."""
    own_errors_step: Observed[int] = 0
    first_failure: Observed[Departure | None] = None
    """The first failure since training has last gone on: later ones may have followed from it."""
    last_failure: Observed[Departure | None] = None

    @property
    def used(self) -> int:
        """Restarts used so far, out of `max_restarts`."""
        return len(self.replacements)


class State(Value, frozen=True):
    """Everything the master decides from."""

    version: int = 1
    job: JobPhase = Active()
    workers: Mapping[str, Worker] = msgspec.field(default_factory=dict)
    next_worker_number: int = 0
    slots: Mapping[str, int] = msgspec.field(default_factory=lambda: {LOCALHOST: 0})
    """Slots granted, by host: the job keeps this many workers running there."""
    training: Training = Training()
    rounds: Rounds = Rounds()
    restarts: Restarts = Restarts()
    spent: Observed[Spent] = Spent()

    @property
    def target_workers(self) -> int:
        """Number of workers that the job keeps running: the slots of all hosts."""
        return sum(self.slots.values())

    @property
    def stop(self) -> str:
        """Why the job stops or has ended; empty if it does not."""
        return reason_to_stop(self.job)

    @property
    def ended(self) -> bool:
        """Whether nothing is left to decide."""
        return isinstance(self.job, Ended)


def reason_to_stop(job: JobPhase) -> str:
    """Why a job stops or has ended; empty if it does not."""
    return "" if isinstance(job, Active) else job.reason


def training_is_over(training: Training, workers: Mapping[str, Worker]) -> bool:
    """Whether a worker has finished the current training and no other worker still has to.

    A worker that holds no state of the training has nothing to finish: a spare, or a joiner at the
    entrance.
    """
    return training.finishing and all(
        worker.phase is not WorkerPhase.MEMBER
        or (worker.entry is not None and (worker.leaving or not worker.entry.has_state))
        for worker in workers.values()
        if worker.training == training.number
    )


def error_has_ended(training: Training, workers: Mapping[str, Worker]) -> bool:
    """Whether an error of callbacks has ended the current training, and workers may catch it."""
    return any(
        worker.phase is WorkerPhase.DONE and worker.raised_in == training.number
        for worker in workers.values()
    )


def input_reply(state: State) -> protocol.InputReply:
    """Returns the input position that newcomers ask for.

    If all workers that hold a state are lost, it has no position: a checkpoint says where to read.
    """
    workers = sum(not worker.leaving for worker in state.workers.values())
    if all(worker.seniority is None for worker in state.workers.values()):
        return protocol.InputReply(workers=workers)
    return protocol.InputReply(
        position=state.training.reading, training=state.training.number, workers=workers
    )


def root_of(state: State) -> str:
    """Returns the root: the worker that stands for all, also between trainings; empty if none.

    The root is rank 0 of the newest round. If that worker is gone, it is the first by rank that is
    left of the round. Before the first round, or when all members are gone, it is the first worker
    that was started.
    """
    members = [w for w in state.rounds.last_members if w in state.workers]
    others = sorted(state.workers.values(), key=lambda worker: worker.number)
    return next(iter([*members, *(w.worker_id for w in others)]), "")


def update_for(state: State, worker_id: str) -> protocol.WorkerUpdate:
    """Returns what one worker has to know now."""
    worker = state.workers.get(worker_id)
    return protocol.WorkerUpdate(
        version=state.version,
        pending_through=state.rounds.pending_through,
        broken_through=state.rounds.broken_through,
        stop=state.stop,
        leave=worker.leaving if worker else protocol.NO_WORKER,
        stalled=bool(worker and worker.told_stalled),
    )
