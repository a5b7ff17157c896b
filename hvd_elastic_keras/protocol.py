"""Messages between workers, master and command lines: versioned JSON, checked on reading.

Workers tell the master what happened with one of the `WorkerEvent` types (`POST /v1/events`),
ask for a place in the next round with `EnterRequest` (`POST /v1/enter`, answered when the round
is complete) and learn of changes with `WorkerUpdate` (`GET /v1/updates`, a long poll). One that has
no place yet and has to read its input from the front asks where the others are (`GET /v1/input`).

A script may train several times in one job. Each process counts its trainings from 1; since all
run the same script, training N of one is training N of all.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from hvd_elastic_keras.errors import ElasticError

PROTOCOL_VERSION = 1
CONFLICT = 409
"""HTTP status of a `SlotsReply` that says no: well-formed, but this job cannot do it now."""
NOTICE = "elastic-notice "
"""Begins a line of the check before a job that the launcher is to show; JSON follows."""
LONG_POLL_S = 20.0
"""How long the master holds an unanswered request before it says "ask again"."""


class ProtocolError(ElasticError):
    """A message is not of the expected form or version."""


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all messages."""


class Joined(Message, frozen=True, kw_only=True, tag="joined"):
    """A worker is warm (imported, traced) for a training and wants a place in a round of it."""

    worker_id: str
    training: int
    pid: int
    num_micro_batches: int
    """Micro-batches in a global batch: no more workers than this can be of use. 0 is no limit."""
    each: bool = False
    """Whether every worker computes so many, however many there are: the batch grows with them."""
    warm_up_s: float


class InputPosition(Message, frozen=True, kw_only=True):
    """Which batch of an input the next step takes, where it can be reached by reading only.

    The fields are those of `training.cursor.Cursor`.
    """

    training: int
    progress: int
    phase: str
    epoch: int
    step: int
    portions: int = 0
    batches_per_pass: int | None = None
    """Of the training data, if somebody knows."""


class Heartbeat(Message, frozen=True, kw_only=True, tag="heartbeat"):
    """Sent twice a second; `phase` is for people (`ctl status`)."""

    worker_id: str
    training: int
    round: int
    step: int
    progress: int
    phase: str
    reading: InputPosition | None = None


class Running(Message, frozen=True, kw_only=True, tag="running"):
    """The worker holds the root's state, at `step`, and starts its first step of this round."""

    worker_id: str
    round: int
    step: int


class Leaving(Message, frozen=True, kw_only=True, tag="leaving"):
    """The worker wants to leave after the current step (it got SIGTERM)."""

    worker_id: str
    reason: str


class Done(Message, frozen=True, kw_only=True, tag="done"):
    """The worker has finished a training with everyone of its round; its script goes on."""

    worker_id: str
    training: int
    step: int


class Refused(Message, frozen=True, kw_only=True, tag="refused"):
    """The worker ends because something is configured wrongly: to start it again is no use."""

    worker_id: str
    message: str
    step: int = 0
    """Steps that it has taken until it found out."""


class Console(Message, frozen=True, kw_only=True, tag="console"):
    """Text of rank 0 for the terminal of the launcher, already formatted."""

    worker_id: str
    text: str


CHECKPOINT_LOADED = "checkpoint_loaded"
"""`Record.event` that the launcher also shows."""


class Record(Message, frozen=True, kw_only=True, tag="record"):
    """An entry of rank 0 for `events.jsonl` (for example `epoch_end`)."""

    worker_id: str
    training: int
    event: str
    fields: dict[str, Any]


WorkerEvent = Joined | Heartbeat | Running | Leaving | Done | Refused | Console | Record


class EnterRequest(Message, frozen=True, kw_only=True):
    """Asks for a place in the round after `from_round`, at a committed state.

    `progress` counts the atomic steps (training and evaluation) behind the worker's state and
    orders states by age; `step` is the number of optimizer steps among them. Both start from 0 in
    every training.
    """

    worker_id: str
    training: int
    from_round: int
    has_state: bool
    progress: int
    step: int
    failure: str = ""
    """Why the last round ended for this worker, if a collective failed; empty otherwise."""
    idle_s: float = 0.0
    """Seconds since its last finished step, if it has taken one."""


class Assignment(Message, frozen=True, kw_only=True):
    """The place of one worker in one round."""

    round: int
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    members: tuple[str, ...]
    """Worker ids by rank."""
    sync: bool
    """Whether some member is behind rank 0, so that all take part in a broadcast of its state."""
    root_has_state: bool
    """False if nobody holds a state: rank 0 loads the newest checkpoint or starts afresh."""
    rendezvous: str
    """Value for HOROVOD_GLOO_RENDEZVOUS_ADDR: address and secret name space of this round."""


ALONE = Assignment(
    round=0,
    rank=0,
    size=1,
    local_rank=0,
    local_size=1,
    cross_rank=0,
    cross_size=1,
    members=("w0",),
    sync=False,
    root_has_state=False,
    rendezvous="",
)
"""The place of a process that is its own world."""


class EnterReply(Message, frozen=True, kw_only=True):
    """At most one of: an assignment, an order to leave, "it is over". None of them: ask again."""

    assignment: Assignment | None = None
    leave: str = ""
    """Why the worker is to leave instead; empty if it is not."""
    job_stops: bool = False
    """Whether it leaves because the whole job stops."""
    training_over: bool = False
    """Whether the job has finished the training of the request: the script is to go on."""


class WorkerUpdate(Message, frozen=True, kw_only=True):
    """What one worker has to know. Rounds are numbered upwards, so all fields only ever grow."""

    version: int
    pending_through: int = 0
    """Rounds up to this number end after the current step: the membership changes."""
    broken_through: int = 0
    """Rounds up to this number have lost a member: their collectives cannot complete."""
    stop: str = ""
    """Not empty if the whole job stops: the reason."""
    leave: str = ""
    """Not empty if this worker has to leave after the current step: the reason."""


class WorkerStatus(Message, frozen=True, kw_only=True):
    """One row of `ctl status`."""

    worker_id: str
    phase: str
    rank: int | None
    host: str
    pid: int | None
    seniority: int | None
    training: int
    """The training it has last begun; 0 before the first."""
    step: int
    heartbeat_age_s: float | None


class HostSlots(Message, frozen=True, kw_only=True):
    """Slots of a job on one host."""

    host: str
    granted: int
    """Workers that the job may keep up there."""
    used: int
    """Workers that are there, those that are leaving included."""


class JobStatus(Message, frozen=True, kw_only=True):
    """Answer to `GET /v1/status`."""

    phase: str
    detail: str
    training: int
    round: int
    step: int
    target_workers: int
    """Slots on all hosts."""
    slots: tuple[HostSlots, ...]
    min_workers: int
    max_workers: int
    restarts_used: int
    max_restarts: int
    workers: tuple[WorkerStatus, ...]


class InputReply(Message, frozen=True, kw_only=True):
    """Answer to `GET /v1/input`: where those read who hold a state."""

    position: InputPosition | None = None


class ChangeRequest(Message, frozen=True, kw_only=True):
    """`POST /v1/workers`: exactly one of the fields is set."""

    add: int = 0
    remove: int = 0
    remove_worker_id: str = ""


class ChangeReply(Message, frozen=True, kw_only=True):
    """What has been decided; `accepted` is false if nothing was changed."""

    accepted: bool
    text: str


class SlotsRequest(Message, frozen=True, kw_only=True):
    """`POST /v1/slots`: a scheduler takes slots back, or gives some."""

    revoke: int | None = None
    grant: int | None = None
    """One of the two is set: how many slots."""
    host: str = ""
    """Where; may be left out when granting on the only host, and when revoking anywhere."""
    deadline_s: float | None = None
    """Workers that have not left so many seconds after a `revoke` are killed; None is never."""

    @property
    def mistake(self) -> str:
        """What is wrong with the request, whatever the job; empty if nothing is."""
        if (self.revoke is None) == (self.grant is None):
            given = (
                "Neither revoke nor grant was" if self.grant is None else "Revoke and grant were"
            )
            return f"{given} given, expected one of the two."
        name, count = ("revoke", self.revoke) if self.grant is None else ("grant", self.grant)
        if not count or count < 1:
            return f"{name} {count} was given, expected at least 1 slot."
        if self.deadline_s is None:
            return ""
        if self.grant is not None:
            return "deadline_s was given with grant, expected it with revoke only."
        if not self.deadline_s > 0:
            return f"deadline_s {self.deadline_s:g} was given, expected more than 0 seconds."
        return ""


class SlotsReply(Message, frozen=True, kw_only=True):
    """What has been decided; `accepted` is false if nothing was changed."""

    accepted: bool
    text: str
    workers: tuple[str, ...] = ()
    """Those that leave, or start."""


class Endpoint(Message, frozen=True, kw_only=True):
    """`job_dir/master.json` (mode 0600): where the master of a running job is reached."""

    version: int
    address: str
    token: str
    pid: int


T = TypeVar("T")


def encode(message: Message) -> bytes:
    """Serialises a message to JSON."""
    return msgspec.json.encode(message)


def decode(data: bytes | str, kind: type[T]) -> T:
    """Parses and checks a message. An `Endpoint` is not quoted in errors: it holds the token.

    Raises:
      ProtocolError: the data are not JSON of that type.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeError) as error:
        name = getattr(kind, "__name__", str(kind))
        received = "something else" if kind is Endpoint else repr(data[:120])
        raise ProtocolError(
            f"Received {received}, expected a {name} message of protocol version "
            f"{PROTOCOL_VERSION}: {error}. Do all parts of the job run the same version?"
        ) from error
