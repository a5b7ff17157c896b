"""Decides whether a worker that has to leave may write a checkpoint.

It must not if the job may go on without it. A worker that is cut off cannot tell this from a dead
master. But it knows whether the other workers have answered until the end. If it sees the job
directory, it also knows the rounds recorded there.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from hvd_elastic_keras.common import events, files
from hvd_elastic_keras.common.errors import (
    ExpelledError,
    LeavingAloneError,
    MasterUnreachableError,
    WorkerLeavingError,
)

log = logging.getLogger(__name__)


class LeaveReason(enum.Enum):
    """Why a worker leaves."""

    TOLD = "the master has told it to"
    EXPELLED = "the master has given it up"
    WITHOUT_MASTER = "no master answers, but the other workers do"
    CUT_OFF = "no master answers, and others have not answered either"


def leave_reason_of(
    error: WorkerLeavingError | MasterUnreachableError, failure: str
) -> LeaveReason:
    """Returns why a worker leaves, by the error that it got at the entrance of a round.

    Args:
      failure: why the previous round failed; empty if it did not.
    """
    match error:
        case ExpelledError():
            return LeaveReason.EXPELLED
        case LeavingAloneError() | MasterUnreachableError():
            return LeaveReason.CUT_OFF if failure else LeaveReason.WITHOUT_MASTER
    return LeaveReason.TOLD


class RoundOfTerm(NamedTuple):
    """A round and the term of its master. Later rounds are greater."""

    term: int
    number: int


def newest_round(entries: Iterable[events.AnyEntry | None]) -> RoundOfTerm | None:
    """Returns the last round that has run (number 0 if none has); None if no job has begun."""
    newest = None
    for entry in entries:
        match entry:
            case events.JobStarted(term=term):
                newest = RoundOfTerm(term, 0)
            case events.MasterRestarted(term=term):
                newest = RoundOfTerm(term, newest.number if newest else 0)
            case events.RoundRunning(round=number) if newest:
                newest = newest._replace(number=number)
    return newest


def objection(reason: LeaveReason, mine: RoundOfTerm, newest: RoundOfTerm | None) -> str:
    """Returns why a worker that leaves must not write a checkpoint; empty if it may.

    Args:
      mine: the last round of this worker.
      newest: the newest round in the job directory; None if the worker does not see the directory.

    >>> objection(LeaveReason.CUT_OFF, RoundOfTerm(1, 4), RoundOfTerm(1, 4))
    ''
    >>> objection(LeaveReason.CUT_OFF, RoundOfTerm(1, 4), RoundOfTerm(1, 5))
    'the job has gone on without it'
    """
    if reason is LeaveReason.TOLD:
        return ""
    if reason is LeaveReason.EXPELLED or (newest is not None and newest > mine):
        return "the job has gone on without it"
    if reason is LeaveReason.CUT_OFF and newest is None:
        return "the job may go on without it: it has lost the others, and sees no job directory"
    return ""


class CheckpointGuard:
    """Keeps a worker that leaves from writing a checkpoint if the job may go on without it.

    Args:
      job_dir: directory of the job, or this host's own if it does not see the directory of the job.
      term: returns the term of the newest master that has answered; None if there is no master.
    """

    def __init__(self, job_dir: Path | None = None, term: Callable[[], int] | None = None) -> None:
        self._job_dir = job_dir
        self._term = term

    def lets_write(self, reason: LeaveReason, round_number: int) -> bool:
        """Whether a worker whose last round was `round_number` may write; logs why not."""
        mine = RoundOfTerm(self._term() if self._term else 0, round_number)
        why_not = objection(reason, mine, self._newest())
        if why_not:
            log.warning("this worker leaves without writing a checkpoint: %s", why_not)
        return not why_not

    def _newest(self) -> RoundOfTerm | None:
        if self._job_dir is None:
            return None
        try:
            with (self._job_dir / files.EVENTS).open(errors="replace") as lines:
                return newest_round(map(events.parse, files.event_entries(lines)))
        except OSError:
            return None
