"""How long a join stops the others, by the size of the state.

A job of one worker grows to two, then to three. The stall is the launcher's figure, from the last
step before the change to when all members are ready; the sync is what rank 0 says in its log. Right
after each join the same number of bytes goes through a plain TCP connection on the loopback
interface, into fresh memory, and is copied once in memory. Only ratios are of use: all see the same
machine.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import rows
from absl import app, flags

HERE = Path(__file__).resolve().parent
LIMIT_S = 300.0
POLL_S = 0.02
BLOCK = 2**20

_SIZES = flags.DEFINE_list("state_mb", ["1", "250", "1000"], "Sizes of the state.")
_WORKERS = flags.DEFINE_integer("workers", 3, "So many in the end.", lower_bound=2)


def raw_socket_s(size: int) -> float:
    """Sends so many bytes from another process into fresh memory."""
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
    """Copies so many bytes into memory that is there."""
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
    began = time.perf_counter()
    np.copyto(target, source)
    return time.perf_counter() - began


@contextmanager
def running(job_dir: Path, megabytes: str) -> Iterator[None]:
    """A job of one worker."""
    command = [
        *(sys.executable, "-m", "hvd_elastic_keras.run", f"--model={HERE / 'sized_model.py'}"),
        *(f"--job_dir={job_dir}", "--num_workers=1", f"--max_workers={_WORKERS.value}"),
        *("--global_batch_size=4", "--micro_batch_size=1", "--epochs=100000"),
    ]
    environment = {"BENCH_STATE_MB": megabytes, "PYTHONPATH": str(HERE.parents[1])}
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
    """This process's variables, without TensorFlow's messages."""
    return {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}


def round_of(job_dir: Path, size: int) -> dict[str, Any]:
    """Waits for the first round of so many workers."""
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


def measure(megabytes: str) -> Iterator[rows.Row]:
    """Lets a job grow, prints a line for each join, and gives its row."""
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
                synced_s, raw_s = sync_s(job_dir, joined["round"]), raw_socket_s(size)
                what = f"{megabytes} MB of state, {workers - 1} -> {workers} workers"
                print(f"{what}: {figures(joined, synced_s, raw_s, size)}", flush=True)
                yield rows.Row(
                    what=f"stall of a join, {what}",
                    against="the same bytes through plain sockets",
                    ratio=joined["stall_s"] / raw_s,
                    limit="plain sockets, for the sync alone",
                    from_limit=synced_s / raw_s,
                )


def sync_s(job_dir: Path, number: int) -> float:
    """How long rank 0 took to bring the others to its state."""
    said = re.compile(rf"round {number}: rank 0 of .* synchronised in ([0-9.]+) s")
    texts = [log.read_text(errors="replace") for log in (job_dir / "logs").glob("*.log")]
    return next(float(found[1]) for found in map(said.search, texts) if found)


def figures(joined: dict[str, Any], synced_s: float, raw_s: float, size: int) -> str:
    """A join in words and ratios."""
    memory_s = copy_s(size)
    return (
        f"stall {joined['stall_s']:.3f} s, of which sync {synced_s:.3f} s; of that, raw sockets "
        f"take {raw_s / synced_s:.0%} ({raw_s:.3f} s), a memory copy {memory_s / synced_s:.0%}"
    )


def main(_: list[str]) -> None:
    """Measures and prints."""
    rows.show([row for megabytes in _SIZES.value for row in measure(megabytes)])


if __name__ == "__main__":
    app.run(main)
