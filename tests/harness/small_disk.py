"""A disk that gets full: a small file system in memory, which only root can make."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


class SmallDisk:
    """A file system in memory.

    Attributes:
      path: the directory at which it is mounted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        """Fills the disk."""
        with contextlib.suppress(OSError), self._ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def make_room(self) -> None:
        """Undoes `fill`."""
        self._ballast.unlink()


@contextlib.contextmanager
def small_disk(directory: Path, size: str = "256k") -> Iterator[SmallDisk]:
    """Makes a small disk there; skips the test where this process may not."""
    directory.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can make a disk of its own")
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(directory)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if mounted.returncode:
        pytest.skip(f"no disk of its own can be made: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(directory)
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True, timeout=60)
