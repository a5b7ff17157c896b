"""Who of all workers does what is to be done once, such as saving a file: pure decisions.

All workers run the same script. Each asks before it does such a thing, under a name (the file's
path) and at a `Position` in the script. The answer is: do it, wait, or it has been done.

* Never two at a time under one name.
* Who does it is the root (`state.root_of`). Another one does if the root is past that point, or
  does not come to it in time: its script may take another way, or save to a path of its own.
* If the worker that does it is lost, the next one that asks does it.
* What was done at that position, or at a later one, is done: a worker that catches up with the
  script repeats its calls, and must not put old files in the place of new ones.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection, Mapping

from hvd_elastic_keras.common import protocol

ROOT_GRACE_S = 5.0
"""How long a file waits for the root to save it."""
BLOCK_GRACE_S = 60.0
"""The same for a block of the script: here the root's own output is wanted, if it can be had."""

Position = tuple[int, bool, int, int]
"""Training, whether it is finished, progress in it, and which call at that point."""


class Verdict(enum.Enum):
    """What a worker that asks is to do."""

    DO = "do"
    WAIT = "wait"
    DONE = "done"


@dataclasses.dataclass(frozen=True)
class Holder:
    """Who is doing something, and for which position."""

    worker_id: str
    position: Position


@dataclasses.dataclass(frozen=True)
class Claims:
    """What is being done and has been done, by name."""

    holders: Mapping[str, Holder] = dataclasses.field(default_factory=dict)
    done: Mapping[str, Position] = dataclasses.field(default_factory=dict)
    reached: Mapping[str, Position] = dataclasses.field(default_factory=dict)
    """The furthest call of each worker, whatever its name."""
    asked: Mapping[tuple[str, str], tuple[Position, float]] = dataclasses.field(
        default_factory=dict
    )
    """By worker and name: for which position, and since when it waits."""


@dataclasses.dataclass(frozen=True)
class Present:
    """The workers as they are now; `root_training` is the training the root has last begun."""

    root: str
    root_training: int
    alive: Collection[str]


def claim(
    claims: Claims, request: protocol.ClaimRequest, present: Present, now: float
) -> tuple[Claims, Verdict]:
    """Decides on one request, which may be repeated."""
    name, worker_id = request.name, request.worker_id
    position = _position(request, request.number)
    claims = _noted(claims, request, now)
    done = claims.done.get(name)
    if done is not None and done >= position and not request.again:
        return claims, Verdict.DONE
    holder = holder_of(claims, name, present.alive)
    if (holder is not None and holder != worker_id) or worker_id not in present.alive:
        return claims, Verdict.WAIT
    since = claims.asked[worker_id, name][1]
    grace_s = ROOT_GRACE_S if name else BLOCK_GRACE_S
    if worker_id == present.root or _is_past(claims, request, present) or now - since >= grace_s:
        holders = {**claims.holders, name: Holder(worker_id, position)}
        return dataclasses.replace(claims, holders=holders), Verdict.DO
    return claims, Verdict.WAIT


def release(claims: Claims, event: protocol.ReleaseRequest) -> Claims:
    """A worker has done what it asked for, or has failed to."""
    holder = claims.holders.get(event.name)
    if holder is None or holder.worker_id != event.worker_id:
        return claims  # sent twice
    holders = {n: h for n, h in claims.holders.items() if n != event.name}
    done = dict(claims.done)
    if event.done:
        done[event.name] = max(holder.position, done.get(event.name, holder.position))
    asked = {k: v for k, v in claims.asked.items() if k != (event.worker_id, event.name)}
    return dataclasses.replace(claims, holders=holders, done=done, asked=asked)


def forget(claims: Claims, training: int) -> Claims:
    """The steps of a training are taken again, since nobody holds its state: so are its files."""
    done = {n: p for n, p in claims.done.items() if p[:2] != (training, False)}
    return dataclasses.replace(claims, done=done, reached={}, asked={})


def holder_of(claims: Claims, name: str, alive: Collection[str]) -> str | None:
    """Who is doing something, if somebody is."""
    holder = claims.holders.get(name)
    return holder.worker_id if holder and holder.worker_id in alive else None


def _noted(claims: Claims, request: protocol.ClaimRequest, now: float) -> Claims:
    key, position = (request.worker_id, request.name), _position(request, request.number)
    before = claims.asked.get(key)
    if before is not None and before[0] == position:
        return claims
    here = _position(request, request.call)
    furthest = max(here, claims.reached.get(request.worker_id, here))
    return dataclasses.replace(
        claims,
        reached={**claims.reached, request.worker_id: furthest},
        asked={**claims.asked, key: (position, now)},
    )


def _is_past(claims: Claims, request: protocol.ClaimRequest, present: Present) -> bool:
    """Whether the root has left the point behind at which another worker asks."""
    if present.root_training > request.training:
        return True
    root = claims.reached.get(present.root)
    waits = claims.asked.get((present.root, request.name))
    if root is None or (waits and waits[0] == _position(request, request.number)):
        return False  # it has not come yet, or is about to do it
    here = _position(request, request.call)
    # At the same point, blocks have numbers of their own: the root's own block would be done.
    return root >= here if request.name else root[:3] > here[:3]


def _position(request: protocol.ClaimRequest, number: int) -> Position:
    return (request.training, request.finished, request.progress, number)
