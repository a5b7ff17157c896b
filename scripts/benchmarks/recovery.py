"""Time from a kill to the next finished step, and the stall at a join, with three local workers.

Prints each measurement, the median and the worst. It also prints the ratio to Elastic Horovod
0.28.1, measured with the same model in the same run (`--nobaseline` leaves that out). Elastic
Horovod is measured with one worker per "host", because it bans the host of a killed worker. It also
goes back to its last commit, which the time does not show.
"""

from __future__ import annotations

import os
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from absl import app, flags
from step_log import members, running, settled, steps, wait, workers_of

HERE = Path(__file__).resolve().parent
WORKERS = 3

_KILLS = flags.DEFINE_integer("kills", 10, "Kills of our workers, over all ranks.", lower_bound=1)
_BASELINE_KILLS = flags.DEFINE_integer(
    "baseline_kills", 2, "Kills under Elastic Horovod.", lower_bound=1
)
_BASELINE = flags.DEFINE_bool("baseline", True, "Also measure Elastic Horovod.")
_BASELINE_PYTHON = flags.DEFINE_string(
    "baseline_python",
    sys.executable,
    "Interpreter of an environment with the Horovod to compare with. By default that is this "
    "project's patched build, with which Elastic Horovod no longer waits for the Gloo timeout.",
)


def first_step(directory: Path, size: int, after: float) -> Callable[[], float | None]:
    """Returns a function that looks for the first step after a moment with this many workers."""
    return lambda: next((t for t, s, _ in steps(directory) if t > after and s == size), None)


def stall_at_join(directory: Path, since: float) -> float:
    """Returns seconds from the smaller world's last step to the full world's first one."""
    last = max(t for t, s, _ in steps(directory) if t > since and s == WORKERS - 1)
    return next(t for t, s, _ in steps(directory) if t > last and s == WORKERS) - last


class Measurements:
    """The times of one system."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kills: list[float] = []
        self.joins: list[float] = []

    def note(self, rank: int, kill: float, join: float) -> None:
        """Adds one kill and the join of the replacement."""
        self.kills.append(kill)
        self.joins.append(join)
        print(f"{self.name}: kill of rank {rank}: {kill:6.2f} s   join: {join:6.2f} s", flush=True)

    def summary(self) -> str:
        """Returns the medians and the worst times."""
        parts = [_median_and_worst("kills", self.kills), _median_and_worst("joins", self.joins)]
        return f"{self.name}: {'; '.join(part for part in parts if part)}"


def _median_and_worst(what: str, times: list[float]) -> str:
    if not times:
        return ""
    return f"{len(times)} {what}: median {statistics.median(times):.2f} s, worst {max(times):.2f} s"


def measure_ours(scratch: Path, kills: int) -> Measurements:
    """Measures this project: workers are killed, and the master replaces them."""
    result = Measurements("hvd_elastic_keras")
    job_dir, log_dir = scratch / "job", scratch / "steps"
    command = [
        *(sys.executable, "-m", "hvd_elastic_keras.run", f"--model={HERE / 'mlp_model.py'}"),
        *(f"--num_workers={WORKERS}", f"--max_restarts={kills}", f"--job_dir={job_dir}"),
        *("--global_batch_size=96", "--micro_batch_size=16", "--epochs=100000"),
    ]
    with running(command, log_dir, scratch / "ours.txt"):
        since = 0.0
        for number in range(kills):
            wait(settled(log_dir, WORKERS, since), f"round of {WORKERS}")
            rank = number % WORKERS
            since = time.monotonic()
            os.kill(members(job_dir)[rank], signal.SIGKILL)
            first = wait(first_step(log_dir, WORKERS - 1, since), "step after the kill")
            wait(settled(log_dir, WORKERS, first), "round with the replacement")
            result.note(rank, first - since, stall_at_join(log_dir, since))
    return result


def measure_elastic_horovod(scratch: Path, kills: int) -> Measurements:
    """Measures `horovodrun` the same way: one worker is killed, the others go on without it."""
    result = Measurements("Elastic Horovod")
    discovery = scratch / "discover.sh"
    # These names of this machine count as different hosts: a host is banned after a failure.
    hosts = ("localhost", "127.0.0.1", socket.gethostname())
    discovery.write_text("#!/bin/sh\n" + "".join(f"echo {host}:1\n" for host in hosts))
    discovery.chmod(0o755)
    command = [
        *(_BASELINE_PYTHON.value, "-m", "horovod.runner.launch", "--gloo", "-np", str(WORKERS)),
        *("--min-np", "1", "--max-np", str(WORKERS), "--network-interfaces", "lo"),
        *("--host-discovery-script", str(discovery), "--blacklist-cooldown-range", "1", "2"),
        *(_BASELINE_PYTHON.value, str(HERE / "baseline_worker.py"), "mlp_model"),
    ]
    for number in range(kills):
        # Each kill needs a new job: the host of the killed worker stays banned.
        log_dir = scratch / f"steps_horovod_{number}"
        with running(command, log_dir, scratch / "horovod.txt") as driver:
            wait(settled(log_dir, WORKERS, 0.0), f"round of {WORKERS}")
            alive = workers_of(driver.pid, log_dir)
            since = time.monotonic()
            os.kill(alive[number % len(alive)], signal.SIGKILL)
            first = wait(first_step(log_dir, WORKERS - 1, since), "step after the kill")
            print(f"{result.name}: kill: {first - since:6.2f} s", flush=True)
            result.kills.append(first - since)
    return result


def main(_: list[str]) -> None:
    """Measures and prints."""
    with tempfile.TemporaryDirectory(prefix="bench_recovery_") as directory:
        scratch = Path(directory)
        ours = measure_ours(scratch, _KILLS.value)
        print(ours.summary(), flush=True)
        if not _BASELINE.value:
            return
        try:
            baseline = measure_elastic_horovod(scratch, _BASELINE_KILLS.value)
        except TimeoutError as error:
            print(f"Elastic Horovod: {error}\n{(scratch / 'horovod.txt').read_text()[-3000:]}")
            return
        print(baseline.summary())
        ratio = statistics.median(baseline.kills) / statistics.median(ours.kills)
        print(f"after a kill, Elastic Horovod stands still {ratio:.0f} times as long (median)")


if __name__ == "__main__":
    app.run(main)
