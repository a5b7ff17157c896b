"""Lets another program hold workers at the beginning of a phase, as chaos does to hit a short one.

    <job_dir>/held/wanted.json    the phases to hold workers at, and which workers
    <job_dir>/held/<worker_id>    the phase at whose beginning this worker waits

The directory exists only while somebody waits for a phase. Without it, a worker that begins a phase
only looks for a file that is not there. A held worker waits until its file is removed, or for
`HOLD_S`.
"""

from __future__ import annotations

import time
from pathlib import Path

from hvd_elastic_keras.common import messages
from hvd_elastic_keras.common.messages import Message, ProtocolError

DIRECTORY = "held"
WANTED = "wanted.json"
HOLD_S = 15.0
"""The other program may have been killed: after this time in vain, a worker never waits again."""
LOOK_S = 0.01


class Wanted(Message, frozen=True, kw_only=True):
    """The content of `wanted.json`: the workers to hold, by phase; no workers means all."""

    phases: dict[str, tuple[str, ...]]

    def holds(self, worker_id: str, phase: str) -> bool:
        """Whether a worker is to wait at the beginning of a phase."""
        workers = self.phases.get(phase)
        return workers is not None and (not workers or worker_id in workers)


class PhaseHold:
    """The worker's side: waits at the beginning of a phase if that is wanted."""

    def __init__(self, job_dir: Path, worker_id: str) -> None:
        self._directory = job_dir / DIRECTORY
        self._worker_id = worker_id
        self._in_vain = False

    def begins(self, phase: str) -> None:
        """Waits, if that is wanted. Some phases begin outside the training thread."""
        if self._in_vain or not self._is_wanted(phase):
            return
        mark = self._directory / self._worker_id
        try:
            mark.write_text(phase)
        except OSError:
            return  # nobody waits for the phase any more
        until = time.monotonic() + HOLD_S
        while mark.exists() and not self._in_vain:
            self._in_vain = time.monotonic() > until
            time.sleep(LOOK_S)

    def _is_wanted(self, phase: str) -> bool:
        try:
            content = (self._directory / WANTED).read_bytes()
            return messages.decode(content, Wanted).holds(self._worker_id, phase)
        except (OSError, ProtocolError):
            return False
