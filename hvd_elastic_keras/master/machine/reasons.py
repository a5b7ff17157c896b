"""The reasons why a round forms. They are put into words when all of them are known. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hvd_elastic_keras.master.machine.value import Value

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
