"""Time per step with even shares and with `--balance=speed`, if one of two workers is slow.

Each worker has a processor for itself (`taskset`'s system call). A busy process shares the
processor of the second worker, which then has half of it. Each measurement is a separate job. The
kinds take turns, so that all see the same machine. The table has medians over the epochs of all
repetitions, and their ratios to even shares. The first twenty epochs of each job are left out,
because speeds are learnt in them.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator

from absl import app, flags
from step_times import LIMIT_S, PINNED, epoch_means

NETWORK = "small ResNet"
EPOCHS = 40
FLAGS = ("--num_workers=2", "--micro_batch_size=4", f"--epochs={EPOCHS}")
BUSY = f"import time\nend = time.monotonic() + {LIMIT_S}\nwhile time.monotonic() < end: pass"
KINDS = {
    "even, one slow": ("--balance=even", True),
    "speed, one slow": ("--balance=speed", True),
    "even, nobody slow": ("--balance=even", False),
    "speed, nobody slow": ("--balance=speed", False),
}
"""The flag, and whether the second worker shares its processor."""

_REPETITIONS = flags.DEFINE_integer("repetitions", 3, "Jobs of each kind.", lower_bound=1)


@contextlib.contextmanager
def busy(processor: int) -> Iterator[None]:
    """Keeps one processor busy within the block."""
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        os.sched_setaffinity(process.pid, {processor})
        yield
    finally:
        process.kill()
        process.wait()


def measure(kind: str) -> list[float]:
    """Returns the seconds per step of each epoch of one job."""
    flag, one_is_slow = KINDS[kind]
    with busy(1) if one_is_slow else contextlib.nullcontext():
        return epoch_means(NETWORK, [*FLAGS, flag], PINNED, skip=20)


def main(_: list[str]) -> None:
    """Prints the table."""
    if (os.cpu_count() or 1) < 2:
        raise SystemExit("This needs two processors, one for each worker.")
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(_REPETITIONS.value):
        for kind, values in found.items():
            values.extend(measure(kind))
    even = statistics.median(found["even, one slow"])
    print(f"{NETWORK}, two workers, 16 micro-batches of 4")
    print(f"{'shares':20}{'ms/step':>8}  ratio")
    for kind, values in found.items():
        median = statistics.median(values)
        print(f"{kind:20}{median * 1e3:8.2f}  {median / even:.2f}")


if __name__ == "__main__":
    app.run(main)
