"""The most memory that a worker and its launcher hold, against plain `fit` of the same model.

The model has 50 million parameters and Adam's two slots: 600 MB of state, and 200 MB of gradients.
`scripts/bench master` measures the memory of masters of up to 1000 workers.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import rows
from absl import app
from launches import QUIET, elastic, in_job_dir, peak_kib

SCRIPT = Path(__file__).resolve().parent / "memory_script.py"
LIMIT_S = 300.0
POLL_S = 0.1


def peaks(*command: str) -> tuple[int, int]:
    """Runs a command; returns the peaks of its largest training and of its first process."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch, "peaks")
        directory.mkdir()
        process = subprocess.Popen(
            in_job_dir(command, Path(scratch, "job")),
            env={**os.environ, **QUIET, "BENCH_PEAKS": str(directory)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        first, deadline = 0, time.monotonic() + LIMIT_S
        while process.poll() is None and time.monotonic() < deadline:
            first = max(first, peak_kib(process.pid))
            time.sleep(POLL_S)
        process.kill()
        if process.wait():
            raise SystemExit(f"{command} ended with {process.returncode}")
        return max(int(file.read_text()) for file in directory.iterdir()), first


def main(_: list[str]) -> None:
    """Prints the rows."""
    plain, _first = peaks(sys.executable, str(SCRIPT), "plain")
    alone, _first = peaks(sys.executable, str(SCRIPT), "elastic")
    one, _first = peaks(*elastic(SCRIPT, 1))
    two, launcher = peaks(*elastic(SCRIPT, 2))
    found = {
        "a worker with the callback, no launcher": alone,
        "a worker of a job of one": one,
        "a worker of a job of two": two,
        "the launcher of two workers": launcher,
    }
    rows.show(
        [
            rows.Row(what=f"peak of memory, {what}", against="plain fit", ratio=peak / plain)
            for what, peak in found.items()
        ]
    )


if __name__ == "__main__":
    app.run(main)
