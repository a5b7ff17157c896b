"""How chaos hits a phase that is short: workers wait at its beginning until they are broken.

    <job_dir>/chaos/wanted.json    which phases, and of which workers
    <job_dir>/chaos/<worker_id>    the phase at whose beginning a worker waits

There is such a directory only while chaos waits for a phase; without one, a worker that begins a
phase looks for a file in vain, and no more. It waits until chaos removes its file, or for `HOLD_S`.
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
"""Chaos may have been killed: who has waited for so long in vain waits no more."""
LOOK_S = 0.01


class Wanted(Message, frozen=True, kw_only=True):
    """The content of `wanted.json`: for each phase the workers, none for all."""

    phases: dict[str, tuple[str, ...]]

    def holds(self, worker_id: str, phase: str) -> bool:
        """Whether a worker is to wait there."""
        workers = self.phases.get(phase)
        return workers is not None and (not workers or worker_id in workers)


class HeldWorker:
    """What a worker has to do with it."""

    def __init__(self, job_dir: Path, worker_id: str) -> None:
        self._directory = job_dir / DIRECTORY
        self._worker_id = worker_id
        self._in_vain = False

    def begins(self, phase: str) -> None:
        """Waits, if that is wanted. Some phases begin in other threads than the training's."""
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
    """What chaos has to do with it. Close it."""

    def __init__(self, job_dir: Path) -> None:
        self._directory = job_dir / DIRECTORY
        self._wanted = Wanted(phases={})

    def want(self, phases: dict[str, tuple[str, ...]]) -> None:
        """Holds workers at these phases from now on, and lets go of all others."""
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
        """The phase at whose beginning a worker waits, by worker."""
        if not self._wanted.phases:
            return {}
        found = {}
        for path in self._directory.iterdir():
            with contextlib.suppress(OSError):
                if path.suffix != Path(WANTED).suffix:
                    found[path.name] = path.read_text()
        return found

    def let_go(self, worker_id: str) -> None:
        """A worker goes on, if it waits."""
        (self._directory / worker_id).unlink(missing_ok=True)

    def close(self) -> None:
        """All workers go on."""
        shutil.rmtree(self._directory, ignore_errors=True)
