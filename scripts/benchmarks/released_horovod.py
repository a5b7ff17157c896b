"""Installs Horovod without this project's changes beside the installed one."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

BUILD = Path(__file__).resolve().parents[1] / "build_horovod_wheel"


@contextlib.contextmanager
def variables() -> Iterator[dict[str, str]]:
    """Yields environment variables with which Python imports it.

    Raises:
      SystemExit: if it cannot be built.
    """
    built = subprocess.run(
        [sys.executable, str(BUILD), "--released"], stdout=subprocess.PIPE, text=True, check=False
    )
    if built.returncode:
        raise SystemExit(built.returncode)
    with tempfile.TemporaryDirectory() as directory:
        with zipfile.ZipFile(built.stdout.split()[-1]) as wheel:
            wheel.extractall(directory)
        yield {"PYTHONPATH": directory}
