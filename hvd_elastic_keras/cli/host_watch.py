"""Follows the hosts of a job: grants and revokes slots, and lets failing hosts rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from hvd_elastic_keras.common.config import JobConfig
from hvd_elastic_keras.launchers.cool_down import CoolDowns
from hvd_elastic_keras.launchers.discovery import Discovery
from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.host_changes import follow
from hvd_elastic_keras.master.machine.state import State

POLL_S = 1.0


class HostWatch:
    """Asks for the hosts of a job, and tells the state machine about changes.

    Args:
      now: the clock of the state machine.
    """

    def __init__(
        self,
        config: JobConfig,
        discovery: Discovery,
        *,
        state: Callable[[], State],
        dispatch: Callable[[act.Event], None],
        now: Callable[[], float],
    ) -> None:
        self._config = config
        self._discovery = discovery
        self._known: dict[str, int] | None = None
        """Slots by host that the state machine has been told of; None before the first time."""
        self._state = state
        self._dispatch = dispatch
        self._now = now
        self._cooling = CoolDowns()

    async def run(self, first: Mapping[str, int]) -> None:
        """Follows the hosts until it is cancelled, beginning with the hosts in `first`."""
        self.apply(first)
        try:
            while True:
                await asyncio.sleep(POLL_S)
                self.apply(await asyncio.to_thread(self._discovery.hosts))
        finally:
            self._discovery.close()

    def apply(self, wanted: Mapping[str, int]) -> None:
        """Changes the slots of the job to the `wanted` ones. Resting hosts get no more slots."""
        state = self._state()
        if state.stop or state.training.finishing:
            return
        if self._known is None:
            self._known = dict(state.slots)  # the slots of an earlier launcher
        self._note_those_that_work(state)
        usable = {h: self._usable(h, slots, self._known.get(h, 0)) for h, slots in wanted.items()}
        for event in follow(self._config, state, self._known, usable):
            self._dispatch(event)
        self._known = usable

    def failed(self, worker_id: str, host: str, reason: str) -> None:
        """Notes that a worker could not be started. Its host rests for a time."""
        state = self._state()
        if worker_id not in state.workers or self._known is None:
            return
        self._cooling = self._cooling.failed(host, self._now())
        pause_s = self._cooling.failing[host].until - self._now()
        before = state.slots[host]
        self._dispatch(act.HostFailed(worker_id, host, reason, pause_s))
        lost = before - self._state().slots[host]
        self._known[host] = max(0, self._known.get(host, 0) - lost)

    def _usable(self, host: str, slots: int, known: int) -> int:
        return min(slots, known) if self._cooling.rests(host, self._now()) else slots

    def _note_those_that_work(self, state: State) -> None:
        for worker in state.workers.values():
            failing = self._cooling.failing.get(worker.host)
            came = worker.last_heartbeat is not None
            if failing and came and worker.launched_at >= failing.until:
                self._cooling = self._cooling.works(worker.host)
