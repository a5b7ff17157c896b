"""Holds workers' claims until it is decided which worker does a task that only one may do."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from hvd_elastic_keras.common import protocol
from hvd_elastic_keras.master.machine import claims
from hvd_elastic_keras.master.machine.state import State, root_of
from hvd_elastic_keras.master.news import News

CLAIM_TICK_S = 0.25
"""Seconds between two looks at a waiting claim: time alone may decide it."""


class ClaimDesk:
    """Answers claims, by the rules of `machine.claims`.

    Args:
      state: returns the present state of the job.
      changed: wakes waiting claims when the state has changed.
    """

    def __init__(self, state: Callable[[], State], changed: News) -> None:
        self._state = state
        self._changed = changed
        self._claims = claims.Claims()

    @property
    def holders(self) -> Mapping[str, claims.Holder]:
        """The worker doing each task, by the task's name."""
        return self._claims.holders

    @property
    def done(self) -> Mapping[str, claims.Position]:
        """The position at which each task was done, by the task's name."""
        return self._claims.done

    def restore(
        self, holders: Mapping[str, claims.Holder], done: Mapping[str, claims.Position]
    ) -> None:
        """Takes over the decisions of another master."""
        self._claims = claims.Claims(holders=holders, done=done)

    async def claim(self, request: protocol.ClaimRequest) -> protocol.ClaimReply:
        """Waits until it is decided which worker does a task, or tells this one to ask again."""
        deadline = time.monotonic() + protocol.LONG_POLL_S
        while True:
            now = time.monotonic()
            present = _present(self._state())
            self._claims, verdict = claims.claim(self._claims, request, present, now)
            if verdict is not claims.Verdict.WAIT or now > deadline:
                break
            await self._changed.wait(CLAIM_TICK_S)
        return protocol.ClaimReply(
            granted=verdict is claims.Verdict.DO,
            done=verdict is claims.Verdict.DONE,
            holder=claims.holder_of(self._claims, request.name, present.alive) or "",
        )

    def release(self, request: protocol.ReleaseRequest) -> None:
        """Notes that a worker has done its task, or has failed to."""
        self._claims = claims.release(self._claims, request)

    def forget(self, training: int) -> None:
        """Forgets the tasks done in a training: its steps and its files are made again."""
        self._claims = claims.forget(self._claims, training)


def _present(state: State) -> claims.Present:
    root = state.workers.get(root_of(state))
    if root is None:
        return claims.Present("", 0, state.workers.keys())
    return claims.Present(root.worker_id, root.training, state.workers.keys())
