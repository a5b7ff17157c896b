"""Decides which worker does a task that is to be done once, such as saving a file. Pure.

All workers run the same script. Each worker asks before it does a task. It gives the task's name
(the file's path) and its own `Position` in the script. The answer is: do it, wait, or it is done.

* Two workers never do a task of the same name at the same time.
* The root (`state.root_of`) does the task. Another worker does it if the root is past that point,
  or does not come to it in time: the root's script may take another way, or save to a path of its
  own.
* If the worker that does the task is lost, the next worker that asks does it.
* If a task was done at the same position or at a later one, it is done. A worker that catches up
  with the script repeats its calls, and must not replace new files by old ones.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection, Mapping

from hvd_elastic_keras.common import protocol

ROOT_GRACE_S = 5.0
"""How long a file waits for the root to save it."""
BLOCK_GRACE_S = 60.0
"""How long a block of the script waits for the root. It is longer because the root's own output is
wanted, if possible."""

Position = tuple[int, bool, int, int]
"""Training, whether it is finished, progress in it, and number of the call at that point."""


class Verdict(enum.Enum):
    """The answer to a worker that asks."""

    DO = "do"
    WAIT = "wait"
    DONE = "done"


@dataclasses.dataclass(frozen=True)
class Holder:
    """The worker that does a task, and the position for which it does the task."""

    worker_id: str
    position: Position


@dataclasses.dataclass(frozen=True)
class Claims:
    """The tasks that are being done and have been done, by name."""

    holders: Mapping[str, Holder] = dataclasses.field(default_factory=dict)
    done: Mapping[str, Position] = dataclasses.field(default_factory=dict)
    results: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What was told about each task when it was done last."""
    reached: Mapping[str, Position] = dataclasses.field(default_factory=dict)
    """The furthest call of each worker, for a task of any name."""
    asked: Mapping[tuple[str, str], tuple[Position, float]] = dataclasses.field(
        default_factory=dict
    )
    """By worker and name: the position that the worker asks for, and since when it waits."""


@dataclasses.dataclass(frozen=True)
class Present:
    """The workers as they are now; `root_training` is the training the root has last begun."""

    root: str
    root_training: int
    alive: Collection[str]


def claim(
    claims: Claims, request: protocol.ClaimRequest, present: Present, now: float
) -> tuple[Claims, Verdict]:
    """Decides on one request. The same request may be repeated."""
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
    """Notes that a worker has done its task, or has failed to."""
    holder = claims.holders.get(event.name)
    if holder is None or holder.worker_id != event.worker_id:
        return claims  # sent twice
    holders = {n: h for n, h in claims.holders.items() if n != event.name}
    done, results = claims.done, claims.results
    if event.done and holder.position >= done.get(event.name, holder.position):
        done = {**done, event.name: holder.position}
        results = {**results, event.name: event.result}
    asked = {k: v for k, v in claims.asked.items() if k != (event.worker_id, event.name)}
    return dataclasses.replace(claims, holders=holders, done=done, results=results, asked=asked)


def forget(claims: Claims, training: int) -> Claims:
    """Forgets the tasks done in a training whose state no worker holds.

    Its steps are taken again, and its files are written again.
    """
    done = {n: p for n, p in claims.done.items() if p[:2] != (training, False)}
    return dataclasses.replace(claims, done=done, reached={}, asked={})


def result_for(claims: Claims, request: protocol.ClaimRequest) -> str:
    """Returns what was told about the newest task of a name; "" to a worker that asks for an older.

    A worker that repeats earlier calls must not take over what a later one has told.
    """
    done = claims.done.get(request.name)
    is_older = done is None or done > _position(request, request.number)
    return "" if is_older else claims.results.get(request.name, "")


def holder_of(claims: Claims, name: str, alive: Collection[str]) -> str | None:
    """Returns the worker that does a task; None if no worker does."""
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
    """Whether the root is past the point at which another worker asks."""
    if present.root_training > request.training:
        return True
    root = claims.reached.get(present.root)
    waits = claims.asked.get((present.root, request.name))
    if root is None or (waits and waits[0] == _position(request, request.number)):
        return False  # the root has not come yet, or is about to do the task
    here = _position(request, request.call)
    # Blocks at the same point are numbered: if the root had run this block, it would be done.
    return root >= here if request.name else root[:3] > here[:3]


def _position(request: protocol.ClaimRequest, number: int) -> Position:
    return (request.training, request.finished, request.progress, number)
