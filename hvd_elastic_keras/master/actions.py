"""What the membership state machine receives (events) and decides (actions). Values only."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from hvd_elastic_keras import protocol


@dataclasses.dataclass(frozen=True)
class Exited:
    """A worker process is gone.

    `failed` is false if it ended as it should; `by_itself` is true if its own program ended it
    with an error, false if something killed it.
    """

    worker_id: str
    cause: str
    failed: bool
    by_itself: bool = False


@dataclasses.dataclass(frozen=True)
class Started:
    """The launcher has started a worker process."""

    worker_id: str
    host: str
    pid: int


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
    """Slots are taken back: `workers` leave, `empty` ones (by host) had no worker.

    Who has not left after `deadline_s` seconds is killed; None is no limit.
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
    Exited
    | Started
    | AddWorkers
    | RemoveWorker
    | GrantSlots
    | RevokeSlots
    | StopJob
    | Tick
    | protocol.EnterRequest
    | protocol.WorkerEvent
)


@dataclasses.dataclass(frozen=True)
class Launch:
    """Start a worker process, after `delay_s` seconds."""

    worker_id: str
    delay_s: float


@dataclasses.dataclass(frozen=True)
class Kill:
    """End a worker process that does not answer."""

    worker_id: str


@dataclasses.dataclass(frozen=True)
class Reply:
    """Answer the request with which a worker waits at the entrance of a round."""

    worker_id: str
    reply: protocol.EnterReply


@dataclasses.dataclass(frozen=True)
class CloseRendezvous:
    """No key of this round, or of an earlier one, will come any more: end all waiting."""

    round: int


@dataclasses.dataclass(frozen=True)
class Emit:
    """Append an entry to `events.jsonl`."""

    event: str
    fields: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Say:
    """Show one line to the person at the terminal."""

    text: str


@dataclasses.dataclass(frozen=True)
class EndJob:
    """All is over."""

    succeeded: bool
    reason: str
    refused: bool = False
    """Whether it ends because a worker found something to be configured wrongly."""


Action = Launch | Kill | Reply | CloseRendezvous | Emit | Say | EndJob
