"""The reasons why a round forms and why a worker is lost. Pure.

They are put into words where they are shown, when all of them are known.
"""

from __future__ import annotations

from collections.abc import Sequence

from hvd_elastic_keras.launchers.base import WorkerExit, exit_cause
from hvd_elastic_keras.master.machine.actions import LaunchCancelled, LaunchFailed
from hvd_elastic_keras.master.machine.value import Value


class Evicted(Value, frozen=True, tag=True):
    """The master has given up a worker that does not answer, and kills it."""

    worker_id: str
    reason: str
    with_host: bool = False
    """Whether another worker of the host was given up first, because the host is lost."""


class Overdue(Value, frozen=True, tag=True):
    """A worker that was asked to leave has not left within its time, and is killed."""

    worker_id: str
    limit_s: float


Departure = WorkerExit | LaunchFailed | LaunchCancelled | Evicted | Overdue


def has_failed(departure: Departure) -> bool:
    """Whether the worker did not end as it should."""
    match departure:
        case WorkerExit():
            return departure.failed
        case LaunchCancelled():
            return False
        case LaunchFailed() | Evicted() | Overdue():
            return True


def by_own_error(departure: Departure) -> bool:
    """Whether the worker's own program ended it with an error."""
    return isinstance(departure, WorkerExit) and departure.by_own_error


def was_killed(departure: Departure) -> bool:
    """Whether a signal ended the worker."""
    code = departure.return_code if isinstance(departure, WorkerExit) else None
    return code is not None and code < 0


def was_taken(departure: Departure) -> bool:
    """Whether others have taken the worker's machine."""
    return isinstance(departure, WorkerExit) and departure.taken


def has_exited_well(departure: Departure) -> bool:
    """Whether the worker's program has come to its end without an error."""
    return isinstance(departure, WorkerExit) and not departure.failed


def cause_of(departure: Departure) -> str:
    """Returns the words that follow the worker's id in a sentence.

    >>> cause_of(Evicted("w1", "no heartbeat for 16 s"))
    'evicted: no heartbeat for 16 s'
    """
    match departure:
        case WorkerExit(return_code=return_code, reason=reason):
            return reason or exit_cause(return_code)
        case LaunchFailed(error=error):
            return f"could not be started: {error}"
        case LaunchCancelled():
            return "was not started"
        case Evicted(reason=reason):
            return f"evicted: {reason}"
        case Overdue(limit_s=limit_s):
            return f"was killed: it had not left within {limit_s:g} s"


def failure_cause(departure: Departure) -> str:
    """Like `cause_of`, for an end that is a failure even if the worker ended well.

    The worker still had work to do.

    >>> failure_cause(WorkerExit("w1", 0))
    'ended with exit code 0 before the training was finished'
    """
    early = "" if has_failed(departure) else " before the training was finished"
    return f"{cause_of(departure)}{early}"


def first_and_last(first: Departure | None, last: Departure | None) -> str:
    """Puts the failures that a job cannot get over into words.

    The first failure may have caused all others.

    >>> first_and_last(WorkerExit("w1", -9), WorkerExit("w3", 1))
    'first w1 was killed by SIGKILL, last w3 failed with exit code 1'
    """
    if first is None or first == last:
        return f"the last failure was {failure_of(last)}"
    return f"first {failure_of(first)}, last {failure_of(last)}"


def failure_of(departure: Departure | None) -> str:
    """Returns a failure as a phrase that names the worker; empty if there was none."""
    return f"{departure.worker_id} {failure_cause(departure)}" if departure else ""


REVOKED = "slot revoked"
SEVERAL = {REVOKED: "slots revoked"}
"""Causes that are worded differently for several workers."""


class Reason(Value, frozen=True):
    """One reason: a change to one worker, or to the job if there is no `worker_id`.

    Attributes:
      text: the words that follow the worker's id.
      of_several: the words that follow the ids of several workers to which the same happens; empty
        if each worker gets its own phrase.
    """

    text: str
    worker_id: str = ""
    of_several: str = ""

    def __str__(self) -> str:
        return told([self])


START = Reason("start")


def joins(worker_id: str) -> Reason:
    """Returns the reason that a newcomer is called to the round."""
    return Reason("joins", worker_id, "join")


def leaves(worker_id: str, cause: str) -> Reason:
    """Returns the reason that a member is asked to leave."""
    return Reason(f"leaves ({cause})", worker_id, f"leave ({SEVERAL.get(cause, cause)})")


def lost_contact(worker_id: str) -> Reason:
    """Returns the reason that a member's collective has failed; the lost worker is not known."""
    return Reason("lost contact", worker_id)


def with_cause(reasons: Sequence[Reason], cause: Reason) -> tuple[Reason, ...]:
    """Returns the reasons with `cause` in place of the lost contacts, which it explains."""
    return (*(r for r in reasons if r != lost_contact(r.worker_id)), cause)


def told(reasons: Sequence[Reason]) -> str:
    """Puts all reasons into words, in the order in which they came up.

    Workers to which the same happens share a phrase.

    >>> told([joins("w4"), leaves("w3", REVOKED), leaves("w2", REVOKED)])
    'w4 joins; w2, w3 leave (slots revoked)'
    """
    phrases: dict[str, list[Reason]] = {}
    for reason in dict.fromkeys(reasons):
        alike = reason.of_several or f"{reason.worker_id} {reason.text}"
        phrases.setdefault(alike, []).append(reason)
    return "; ".join(_phrase(together) for together in phrases.values())


def _phrase(reasons: Sequence[Reason]) -> str:
    names = sorted((r.worker_id for r in reasons if r.worker_id), key=lambda name: int(name[1:]))
    text = reasons[0].text if len(reasons) == 1 else reasons[0].of_several
    return " ".join(filter(None, [", ".join(names), text]))


def without_joining(reasons: Sequence[Reason], worker_id: str) -> tuple[Reason, ...]:
    """Returns the reasons that are left when a worker does not join after all."""
    return tuple(reason for reason in reasons if reason != joins(worker_id))
