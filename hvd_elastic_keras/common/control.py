"""Messages of command lines, schedulers and joiners to the master, and its answers."""

from __future__ import annotations

import enum
import hmac
from typing import ClassVar

import msgspec

from hvd_elastic_keras.common import host_port
from hvd_elastic_keras.common.messages import Message, Name

TOKEN_BYTES = 32
"""Number of random bytes in a job's token."""
CONFLICT = 409
"""HTTP status of a `SlotsReply` to a well-formed request that the job cannot fulfil now."""


class WorkerStatus(Message, frozen=True, kw_only=True):
    """One row of `ctl status`."""

    worker_id: str
    phase: str
    rank: int | None
    host: str
    pid: int | None
    seniority: int | None
    training: int
    """The training that the worker has last begun; 0 before the first."""
    step: int
    heartbeat_age_s: float | None
    cores: float = 0.0
    """Processor time of its process per second, lately."""
    memory_bytes: int = 0
    """Memory of its process that is in use (resident); 0 before its first heartbeat."""


class HostSlots(Message, frozen=True, kw_only=True):
    """Slots of a job on one host."""

    host: str
    granted: int
    """Workers that the job may run on this host."""
    used: int
    """Workers on this host, including workers that are leaving."""


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
    spent_s: dict[str, float] = msgspec.field(default_factory=dict)
    """Seconds since the job's start, by what they were spent on; see `goodput.Part`."""
    warnings: tuple[str, ...] = ()
    """Things that the launcher cannot do at present, such as writing its journal."""
    workers: tuple[WorkerStatus, ...]


class ChangeRequest(Message, frozen=True, kw_only=True):
    """`POST /v1/workers`: exactly one of the first three fields is set."""

    examples: ClassVar[str] = '{"add": 1}, {"remove": 1} or {"remove_worker_id": "w3"}'

    add: int = 0
    remove: int = 0
    remove_worker_id: str = ""
    command_id: Name = ""
    """Chosen by the sender. A request that is repeated with the same `command_id` counts once."""

    @property
    def mistake(self) -> str:
        """The mistake that makes the request wrong for any job; empty if there is none."""
        named = ("add", "remove", "remove_worker_id")
        given = [name for name in named if getattr(self, name)]
        if len(given) > 1:
            return f"{' and '.join(given)} were given, expected one of {self.examples}."
        return ""


class ChangeReply(Message, frozen=True, kw_only=True):
    """The decision on a `ChangeRequest`; `accepted` is false if nothing was changed."""

    accepted: bool
    text: str


class StopRequest(Message, frozen=True, kw_only=True):
    """`POST /v1/stop`: the job stops after the current step. Answered with a `ChangeReply`."""

    examples: ClassVar[str] = '{"reason": "maintenance"}'

    reason: Name
    """What the job says about its end."""


class SlotsRequest(Message, frozen=True, kw_only=True):
    """`POST /v1/slots`: a scheduler revokes or grants slots."""

    examples: ClassVar[str] = (
        '{"revoke": 1, "deadline_s": 30, "host": "localhost"} or {"grant": 1}, of which deadline_s '
        "and host may be left out"
    )

    revoke: int | None = None
    grant: int | None = None
    """Number of slots. Exactly one of `revoke` and `grant` is set."""
    host: str = ""
    """The host of the slots. May be left out to grant on the only host, or to revoke anywhere."""
    deadline_s: float | None = None
    """Seconds after a `revoke` until workers that have not left are killed; None: never."""
    command_id: Name = ""
    """As in `ChangeRequest`."""

    @property
    def mistake(self) -> str:
        """The mistake that makes the request wrong for any job; empty if there is none."""
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
    """The decision on a `SlotsRequest`; `accepted` is false if nothing was changed."""

    accepted: bool
    text: str
    workers: tuple[str, ...] = ()
    """Ids of the workers that leave or start."""


def read_only_token(token: str) -> str:
    """Returns the token that may ask for the state of a job, given the token that may do all.

    It is the HMAC-SHA-256 of "read" (RFC 2104) with the token as the key, in hexadecimal digits.
    So there is nothing more to keep, and `ctl read_only_token` computes it before a job starts.
    """
    return hmac.digest(token.encode(), b"read", "sha256").hex()


class Endpoint(Message, frozen=True, kw_only=True):
    """`job_dir/master.json` (mode 0600): how to reach the master of a running job."""

    secret: ClassVar[bool] = True

    version: int
    address: str
    token: str
    pid: int
    job_dir: str = ""
    fingerprint: str = ""
    """SHA-256 of the master's certificate, in hexadecimal digits; empty for plain HTTP."""

    @property
    def port(self) -> int:
        """The port of `address`."""
        return host_port.split(self.address)[1]

    @property
    def dashboard(self) -> str:
        """The URL of the dashboard. The part after the # stays in the browser."""
        return f"http{'s' if self.fingerprint else ''}://{self.address}/dashboard#{self.token}"

    @property
    def dashboard_to_read(self) -> str:
        """The same for people who may see the job, but not change it."""
        return self.dashboard.removesuffix(self.token) + read_only_token(self.token)

    @property
    def for_joiners(self) -> str:
        """The content of a joiner's --token_file: the token, and the fingerprint if any."""
        return f"{self.token} {self.fingerprint}\n"


ENDED_WELL = 0
LEFT = 75
"""Exit code (EX_TEMPFAIL): asked to leave, or given up by the job. Another joiner is welcome."""
HOPELESS = 93
"""Exit code: something is configured wrongly. Starting the worker again would not help."""
FAILED = 1


class JobDescription(Message, frozen=True, kw_only=True):
    """Answer to `GET /v1/job`: all that a worker on another host must know before it joins."""

    name: str = ""
    job_dir: str = ""
    job_id: str = ""
    """A worker that sees the job directory finds this id there; see `files.JOB_ID`."""
    directory: str = ""
    """Directory where the launcher was started. Paths of the script or model are relative to it."""
    script: tuple[str, ...] = ()
    """The script with its arguments; empty for a model module."""
    job: str = ""
    """The content of `job.json`; empty for a script."""
    sources: dict[str, str] = {}  # noqa: RUF012  msgspec copies it
    """SHA-256 of each file of the script or model, by file name."""
    versions: dict[str, str] = {}  # noqa: RUF012  msgspec copies it
    """Versions that must be the same on all workers; see `common.versions`."""
    options: str = ""
    """`JobOptions` in JSON."""
    master_timeout_s: float = 600.0


class JoinRequest(Message, frozen=True, kw_only=True):
    """`POST /v1/join`: a worker is about to start on a host."""

    key: Name
    """A random text. A request that is sent again with the same key counts once."""
    host: Name
    worker_id: Name = ""
    """The id that the launcher has given, if the launcher has started this worker."""
    sees_job_dir: bool = True
    """Whether checkpoints and results written on this host get to the job directory."""


class JoinReply(Message, frozen=True, kw_only=True):
    """Answer to a `JoinRequest`: one of `worker_id`, `refused` and `over` is given."""

    worker_id: str = ""
    workers_here: int = 1
    """Workers of the job on this host, as far as is known."""
    slot: int = 0
    """Number of the worker's slot on this host, from 0; no two workers have the same."""
    refused: str = ""
    """Why the job has no place for the worker."""
    over: bool = False
    """Whether the job has come to its end."""


class ExitRequest(Message, frozen=True, kw_only=True):
    """`POST /v1/exit`: the process of a joined worker is gone."""

    worker_id: Name
    return_code: int | None
    """As in `subprocess`."""
    log_tail: str = ""
    """The end of the worker's log, if it failed. The job directory may be on another disk."""


class Outcome(str, enum.Enum):
    """The meaning of a worker's end for its job."""

    FINISHED = "finished"
    LEFT = "left"
    EXPELLED = "expelled"
    """The job had given the worker up, because it was silent for too long."""
    REFUSED = "refused"
    """The worker found something to be configured wrongly."""
    FAILED = "failed"


class ExitReply(Message, frozen=True, kw_only=True):
    """Answer to an `ExitRequest`."""

    outcome: Outcome
