"""Checks whether the processes of silent workers on this machine still run."""

from __future__ import annotations

from collections.abc import Callable

from hvd_elastic_keras.common import protocol
from hvd_elastic_keras.launchers.base import LOCALHOST
from hvd_elastic_keras.launchers.signs_of_life import SignsOfLife
from hvd_elastic_keras.master.machine.state import State, Worker, WorkerPhase
from hvd_elastic_keras.settings.job_config import JobConfig

LOOK_S = 1.0
"""Seconds between two looks; a quarter of `heartbeat_timeout_s` if that is shorter."""


class LifeWatch:
    """Looks at silent workers that the launcher has started on this machine.

    All other workers are reported by the process that looks after them: see `protocol.Alive`.

    Args:
      tell: passes a finding to the state machine.
    """

    def __init__(self, config: JobConfig, tell: Callable[[protocol.Alive], None]) -> None:
        self._quiet_s = config.heartbeat_timeout_s / 3
        self._look_s = min(LOOK_S, config.heartbeat_timeout_s / 4)
        self._tell = tell
        self._signs: dict[str, SignsOfLife] = {}
        self._look_at = 0.0

    def look(self, state: State, now: float) -> None:
        """Reports each worker that has been quiet for a while, but whose process runs."""
        if now < self._look_at:
            return
        self._look_at = now + self._look_s
        known = self._signs
        self._signs = {
            worker.worker_id: known.get(worker.worker_id) or SignsOfLife(worker.pid)
            for worker in state.workers.values()
            if worker.pid is not None and self._is_quiet(worker, now)
        }
        for worker_id, signs in self._signs.items():
            if signs.since_last_look():
                self._tell(protocol.Alive(worker_id=worker_id))

    def _is_quiet(self, worker: Worker, now: float) -> bool:
        heard_at = worker.last_heartbeat
        is_here = worker.host == LOCALHOST and not worker.by_itself
        if not is_here or heard_at is None or worker.phase is WorkerPhase.DONE:
            return False
        return now - heard_at > self._quiet_s
