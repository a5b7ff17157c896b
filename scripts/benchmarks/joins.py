"""How long a join stops the other workers, by the size of the state.

A job of one worker grows to two, then to three. The stall is the launcher's figure: from the last
step before the change until all members are ready. It is compared with the stall of the smallest
state.

Beside it is the time by which the steps around the join took longer than usual. It is measured by
the clock of the worker that was there first, which may be slower while it gives its state. This
value is for reading, not for a ratio: steps vary very much on a machine that others use.

Right after each join, the same number of bytes is sent through a plain TCP connection on the
loopback interface, into fresh memory.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import rows
from absl import app, flags

HERE = Path(__file__).resolve().parent
LIMIT_S = 300.0
POLL_S = 0.02
STEPS = 12
"""Steps after a join from which the usual time of a step is taken."""
AROUND = 3
"""Steps before and after the end of the stall that may take longer than usual."""
BLOCK = 2**20

_SIZES = flags.DEFINE_list("state_mb", ["1", "250", "1000"], "Sizes of the state.")
_WORKERS = flags.DEFINE_integer("workers", 3, "So many in the end.", lower_bound=2)


def raw_socket_s(size: int) -> float:
    """Returns the seconds to receive this many bytes from another process into fresh memory."""
    listener = socket.create_server(("127.0.0.1", 0))
    source = np.ones(BLOCK, np.uint8)
    child = os.fork()
    if child == 0:
        with socket.create_connection(listener.getsockname()) as connection:
            for start in range(0, size, BLOCK):
                connection.sendall(source[: size - start])
        os._exit(0)
    with listener, listener.accept()[0] as connection:
        began = time.perf_counter()
        target, done = np.empty(size, np.uint8), 0
        while done < size:
            done += connection.recv_into(target[done : done + BLOCK])
        taken = time.perf_counter() - began
    os.waitpid(child, 0)
    return taken


def copy_s(size: int) -> float:
    """Returns the seconds to copy this many bytes into memory that is already in use."""
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
    began = time.perf_counter()
    np.copyto(target, source)
    return time.perf_counter() - began


@contextmanager
def running(job_dir: Path, megabytes: str) -> Iterator[None]:
    """Runs a job of one worker."""
    command = [
        *(sys.executable, "-m", "hvd_elastic_keras.run", f"--model={HERE / 'sized_model.py'}"),
        *(f"--job_dir={job_dir}", "--num_workers=1", f"--max_workers={_WORKERS.value}"),
        *("--global_batch_size=64", "--micro_batch_size=16", "--epochs=100000"),
    ]
    ends = job_dir.parent / "step_ends"
    ends.mkdir()
    environment = {
        **{"BENCH_STATE_MB": megabytes, "PYTHONPATH": str(HERE.parents[1])},
        "BENCH_STEP_ENDS": str(ends),
    }
    with (job_dir.parent / "output.txt").open("wb") as output:
        job = subprocess.Popen(
            command, env={**environment_of_python(), **environment}, stdout=output, stderr=output
        )
        try:
            yield
        finally:
            job.send_signal(signal.SIGTERM)
            job.wait(LIMIT_S)


def environment_of_python() -> dict[str, str]:
    """Returns this process's variables, without TensorFlow's messages."""
    return {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}


def round_of(job_dir: Path, size: int) -> dict[str, Any]:
    """Waits for the first round of this many workers; returns its event."""
    deadline = time.monotonic() + LIMIT_S
    events = job_dir / "events.jsonl"
    while time.monotonic() < deadline:
        lines = events.read_text().splitlines() if events.exists() else []
        for entry in map(json.loads, lines):
            if entry["event"] == "round_running" and entry["world_size"] == size:
                return dict(entry)
        time.sleep(POLL_S)
    raise TimeoutError(
        f"no round of {size} within {LIMIT_S:.0f} s:\n"
        f"{(job_dir.parent / 'output.txt').read_text()[-3000:]}"
    )


@dataclasses.dataclass(frozen=True)
class Join:
    """One measured join."""

    megabytes: str
    workers: int
    stall_s: float


def measure(megabytes: str) -> Iterator[Join]:
    """Lets a job grow, and prints a line for each join."""
    size = int(float(megabytes) * 2**20)
    with tempfile.TemporaryDirectory(prefix="bench_joins_") as directory:
        job_dir = Path(directory, "job")
        with running(job_dir, megabytes):
            round_of(job_dir, 1)
            for workers in range(2, _WORKERS.value + 1):
                command = [sys.executable, "-m", "hvd_elastic_keras.ctl", "add", "1"]
                subprocess.run(
                    [*command, f"--job_dir={job_dir}"], check=True, capture_output=True, cwd=HERE
                )
                joined = round_of(job_dir, workers)
                lost_s, raw_s = time_lost(job_dir.parent / "step_ends"), raw_socket_s(size)
                print(
                    f"{megabytes} MB of state, {workers - 1} -> {workers} workers: stall "
                    f"{joined['stall_s']:.3f} s; {lost_s:.3f} s lost to steps; the bytes through "
                    f"plain sockets {raw_s:.3f} s, a copy in memory {copy_s(size):.3f} s",
                    flush=True,
                )
                yield Join(megabytes, workers, joined["stall_s"])


def rows_of(joins: Sequence[Join]) -> list[rows.Row]:
    """Returns how the stall grows with the state, for each number of workers."""
    first = joins[0].megabytes
    least = {j.workers: j.stall_s for j in joins if j.megabytes == first}
    return [
        rows.Row(
            what=f"stall, {j.megabytes} MB of state, {j.workers - 1} -> {j.workers} workers",
            against=f"that with {first} MB",
            ratio=j.stall_s / least[j.workers],
        )
        for j in joins
        if j.megabytes != first
    ]


def time_lost(directory: Path) -> float:
    """Returns the seconds by which the steps around the newest round took longer than usual.

    Args:
      directory: directory of the files of `StepEnds`.
    """
    deadline = time.monotonic() + LIMIT_S
    began = time.monotonic()
    while time.monotonic() < deadline:
        ends = max((read_ends(file) for file in directory.iterdir()), key=len)
        after = [end for end in ends if end > began]
        if len(after) > STEPS:
            newest = len(ends) - len(after) - 1
            usual_s = AROUND * (median_step(ends[:newest]) + median_step(after))
            return ends[newest + AROUND] - ends[newest - AROUND] - usual_s
        time.sleep(POLL_S)
    raise TimeoutError(f"there were not {STEPS} steps within {LIMIT_S:.0f} s")


def median_step(ends: Sequence[float]) -> float:
    """Returns the median seconds of the newest steps."""
    return statistics.median(b - a for a, b in itertools.pairwise(ends[-STEPS:]))


def read_ends(file: Path) -> list[float]:
    """Returns the ends of a process's steps so far. The last line may be incomplete."""
    return [float(line) for line in file.read_text().split("\n")[:-1]]


def main(_: list[str]) -> None:
    """Measures and prints."""
    rows.show(rows_of([join for megabytes in _SIZES.value for join in measure(megabytes)]))


if __name__ == "__main__":
    app.run(main)
