"""The events that the state machine receives, and the actions that it decides. Values only."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping

from hvd_elastic_keras.common import events, protocol
from hvd_elastic_keras.launchers.base import WorkerExit
from hvd_elastic_keras.master.machine.value import Value


@dataclasses.dataclass(frozen=True)
class Started:
    """The launcher has started a worker process."""

    worker_id: str
    host: str
    pid: int


@dataclasses.dataclass(frozen=True)
class Pending:
    """A launched worker waits for a machine, or has got it.

    `reason` says why the worker cannot start. It is empty if no reason is known, and None if the
    worker starts now.
    """

    worker_id: str
    reason: str | None


class LaunchFailed(Value, frozen=True, tag=True):
    """The launcher could not start a worker."""

    worker_id: str
    error: str


@dataclasses.dataclass(frozen=True)
class HostFailed:
    """A worker that was launched on another host has not come, because of the host.

    The host is tried again after `pause_s` seconds, by a grant.
    """

    worker_id: str
    host: str
    reason: str
    pause_s: float


@dataclasses.dataclass(frozen=True)
class Registered:
    """A worker that the launcher has not started gets this id; it is about to start."""

    worker_id: str
    host: str


class LaunchCancelled(Value, frozen=True, tag=True):
    """A worker was not started, because it was not wanted any more when its time came."""

    worker_id: str


@dataclasses.dataclass(frozen=True)
class AddWorkers:
    """Somebody asked for more workers."""

    count: int


@dataclasses.dataclass(frozen=True)
class RemoveWorker:
    """Somebody asked one worker to leave."""

    worker_id: str


@dataclasses.dataclass(frozen=True)
class GrantSlots:
    """More workers may run on a host."""

    host: str
    count: int


@dataclasses.dataclass(frozen=True)
class RevokeSlots:
    """Slots are taken back: those of `workers`, which leave, and `empty` ones, by host.

    A worker that has not left after `deadline_s` seconds is killed; None is no limit.
    """

    workers: tuple[str, ...]
    empty: Mapping[str, int]
    deadline_s: float | None


@dataclasses.dataclass(frozen=True)
class StopJob:
    """The whole job is to stop after the current step."""

    reason: str


@dataclasses.dataclass(frozen=True)
class Tick:
    """Time has passed; sent regularly so that time limits are noticed."""


Event = (
    WorkerExit
    | LaunchFailed
    | HostFailed
    | LaunchCancelled
    | Started
    | Pending
    | Registered
    | AddWorkers
    | RemoveWorker
    | GrantSlots
    | RevokeSlots
    | StopJob
    | Tick
    | protocol.EnterRequest
    | protocol.Joined
    | protocol.Heartbeat
    | protocol.Alive
    | protocol.Running
    | protocol.Leaving
    | protocol.Done
    | protocol.Refused
)


@dataclasses.dataclass(frozen=True)
class Launch:
    """Start a worker process on a host, after `delay_s` seconds."""

    worker_id: str
    host: str
    delay_s: float


@dataclasses.dataclass(frozen=True)
class Kill:
    """End a worker process that does not answer."""

    worker_id: str


@dataclasses.dataclass(frozen=True)
class Reply:
    """Answer the request with which a worker waits at the entrance of a round.

    `training` is the number of the training that the answer is for; 0 is any.
    """

    worker_id: str
    reply: protocol.EnterReply
    training: int = 0


@dataclasses.dataclass(frozen=True)
class CloseRendezvous:
    """End all waiting for keys of this round and of earlier ones: no more keys will come."""

    round: int


@dataclasses.dataclass(frozen=True)
class Emit:
    """Append an entry to `events.jsonl`."""

    entry: events.Entry


@dataclasses.dataclass(frozen=True)
class Say:
    """Show one line to the person at the terminal."""

    text: str


class Outcome(enum.Enum):
    """How a job ends."""

    FINISHED = "finished"
    """Its script has come to its end."""
    STOPPED = "stopped"
    """All workers have left, because somebody asked the job to stop."""
    FAILED = "failed"
    REFUSED = "refused"
    """A worker has found something to be configured wrongly."""


@dataclasses.dataclass(frozen=True)
class EndJob:
    """End the job."""

    outcome: Outcome
    reason: str

    @property
    def succeeded(self) -> bool:
        """Whether the job did what was asked of it."""
        return self.outcome in (Outcome.FINISHED, Outcome.STOPPED)


Action = Launch | Kill | Reply | CloseRendezvous | Emit | Say | EndJob
