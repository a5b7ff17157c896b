"""Holds workers at the beginning of a phase, so that chaos can hit even a short phase.

    <job_dir>/chaos/wanted.json    the phases to hold workers at, and which workers
    <job_dir>/chaos/<worker_id>    the phase at whose beginning this worker waits

The directory exists only while chaos waits for a phase. Without it, a worker that begins a phase
only looks for a file that is not there. A held worker waits until chaos removes its file, or for
`HOLD_S`.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path

import msgspec

from hvd_elastic_keras.common import files, messages
from hvd_elastic_keras.common.messages import Message, ProtocolError

DIRECTORY = "chaos"
WANTED = "wanted.json"
HOLD_S = 15.0
"""Chaos may have been killed: a worker that has waited this long in vain never waits again."""
LOOK_S = 0.01


class Wanted(Message, frozen=True, kw_only=True):
    """The content of `wanted.json`: the workers to hold, by phase; no workers means all."""

    phases: dict[str, tuple[str, ...]]

    def holds(self, worker_id: str, phase: str) -> bool:
        """Whether a worker is to wait at the beginning of a phase."""
        workers = self.phases.get(phase)
        return workers is not None and (not workers or worker_id in workers)


class HeldWorker:
    """The worker's side: waits at the beginning of a phase if chaos wants that."""

    def __init__(self, job_dir: Path, worker_id: str) -> None:
        self._directory = job_dir / DIRECTORY
        self._worker_id = worker_id
        self._in_vain = False

    def begins(self, phase: str) -> None:
        """Waits, if chaos wants that. Some phases begin outside the training thread."""
        if self._in_vain or not self._is_wanted(phase):
            return
        mark = self._directory / self._worker_id
        try:
            mark.write_text(phase)
        except OSError:
            return  # chaos has just ended
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


class Holds:
    """The side of chaos: says where workers wait, and lets them go on. Close it after use."""

    def __init__(self, job_dir: Path) -> None:
        self._directory = job_dir / DIRECTORY
        self._wanted = Wanted(phases={})

    def want(self, phases: dict[str, tuple[str, ...]]) -> None:
        """Holds workers at these phases from now on, and lets all others go on."""
        wanted = Wanted(phases=phases)
        if wanted == self._wanted:
            return
        self._wanted = wanted
        if not phases:
            self.close()
            return
        self._directory.mkdir(exist_ok=True)
        files.write_json(self._directory / WANTED, msgspec.to_builtins(wanted))
        for worker_id, phase in self.held().items():
            if not wanted.holds(worker_id, phase):
                self.let_go(worker_id)

    def held(self) -> dict[str, str]:
        """Returns, by id of a waiting worker, the phase at whose beginning it waits."""
        if not self._wanted.phases:
            return {}
        found = {}
        for path in self._directory.iterdir():
            with contextlib.suppress(OSError):
                if path.suffix != Path(WANTED).suffix:
                    found[path.name] = path.read_text()
        return found

    def let_go(self, worker_id: str) -> None:
        """Lets a worker go on, if it waits."""
        (self._directory / worker_id).unlink(missing_ok=True)

    def close(self) -> None:
        """Lets all workers go on."""
        shutil.rmtree(self._directory, ignore_errors=True)
