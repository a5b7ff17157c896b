"""Messages between `run --join` and the master: what is trained, a place in it, and its end."""

from __future__ import annotations

import enum

from hvd_elastic_keras.common.messages import Message, Name

ENDED_WELL = 0
LEFT = 75
"""Exit code: asked to leave, or given up by the job; another joiner is welcome (EX_TEMPFAIL)."""
HOPELESS = 93
"""Exit code: something is configured wrongly; to start it again is no use."""
FAILED = 1


class JobDescription(Message, frozen=True, kw_only=True):
    """Answer to `GET /v1/job`: all that a worker on another host has to know before it joins."""

    name: str = ""
    job_dir: str = ""
    job_id: str = ""
    """Who sees the job directory finds it there; see `files.JOB_ID`."""
    directory: str = ""
    """Where the launcher was started: paths of the script or model are relative to it."""
    script: tuple[str, ...] = ()
    """With its arguments; empty for a model module."""
    job: str = ""
    """`job.json`; empty for a script."""
    sources: dict[str, str] = {}  # noqa: RUF012  msgspec copies it
    """SHA-256 of the files of the script or model, by their names."""
    versions: dict[str, str] = {}  # noqa: RUF012  msgspec copies it
    """Of what all workers must have alike; see `common.versions`."""
    options: str = ""
    """`JobOptions` in JSON."""
    master_timeout_s: float = 600.0


class JoinRequest(Message, frozen=True, kw_only=True):
    """`POST /v1/join`: a worker is about to start on a host."""

    key: Name
    """Random: sent again, the request counts once."""
    host: Name
    worker_id: Name = ""
    """As the launcher has said, if it has started this one."""
    sees_job_dir: bool = True
    """Whether checkpoints and results that are written there get to the job directory."""


class JoinReply(Message, frozen=True, kw_only=True):
    """One of `worker_id`, `refused` and `over` is given."""

    worker_id: str = ""
    workers_here: int = 1
    """Of the job on this host, as far as is known."""
    slot: int = 0
    """Its place on this host, from 0; no two workers have the same."""
    refused: str = ""
    """Why there is no place."""
    over: bool = False
    """Whether the job has come to its end."""


class ExitRequest(Message, frozen=True, kw_only=True):
    """`POST /v1/exit`: the process of a worker that has joined is gone."""

    worker_id: Name
    return_code: int | None
    """As in `subprocess`."""
    log_tail: str = ""
    """The end of its log, if it failed: the job directory may be on another disk."""


class Outcome(str, enum.Enum):
    """What the end of a worker was for its job."""

    FINISHED = "finished"
    LEFT = "left"
    EXPELLED = "expelled"
    """The job had given it up: it was silent for too long."""
    REFUSED = "refused"
    """It found something to be configured wrongly."""
    FAILED = "failed"


class ExitReply(Message, frozen=True, kw_only=True):
    """Answer to an `ExitRequest`."""

    outcome: Outcome
