"""Holds workers at the beginning of a phase, so that chaos can hit even a short phase."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import msgspec

from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.phase_hold import DIRECTORY, WANTED, Wanted


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
