"""Messages between `run --join` and the master: the job, a worker's place in it, and its end."""

from __future__ import annotations

import enum

from hvd_elastic_keras.common.messages import Message, Name

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
