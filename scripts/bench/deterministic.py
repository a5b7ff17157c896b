"""Time per step with `--deterministic` against the usual mode, with one and with two workers.

Each measurement is a job of its own, because threads are settings of a process. The kinds take
turns, so that all see the same machine. Printed are medians over the epochs of all repetitions, the
first epoch of each left out, and their ratios to the usual mode.

"one thread" is the usual mode with one thread per operation: what is between it and
"deterministic" is the cost of the tree of sums and of TensorFlow's op determinism.
"""

from __future__ import annotations

import statistics

from absl import app, flags
from step_times import epoch_means

NAMES = ("tiny MLP", "small ResNet")
EPOCHS = 5
KINDS = {
    "usual": ([], {}),
    "one thread": ([], {"TF_NUM_INTRAOP_THREADS": "1", "OMP_NUM_THREADS": "1"}),
    "deterministic": (["--deterministic"], {}),
}
"""Flags and environment."""

_REPETITIONS = flags.DEFINE_integer("repetitions", 3, "Jobs of each kind.", lower_bound=1)
_WORKERS = flags.DEFINE_list("workers", ["1", "2"], "Numbers of workers.")


def measure(name: str, workers: str, kind: str) -> list[float]:
    """Seconds per step of the epochs of one job, the first one left out."""
    options, variables = KINDS[kind]
    flags = [f"--num_workers={workers}", f"--epochs={EPOCHS}", "--micro_batch_size=8", *options]
    return epoch_means(name, flags, variables)


def main(_: list[str]) -> None:
    """Prints the table."""
    cells = [(name, workers) for name in NAMES for workers in _WORKERS.value]
    found: dict[tuple[str, str, str], list[float]] = {}
    for _ in range(_REPETITIONS.value):
        for name, workers in cells:
            for kind in KINDS:
                found.setdefault((name, workers, kind), []).extend(measure(name, workers, kind))
    print(f"{'model':14}{'workers':>7}  {'kind':15}{'ms/step':>8}  ratio")
    for (name, workers, kind), values in found.items():
        median = statistics.median(values)
        usual = statistics.median(found[name, workers, "usual"])
        print(f"{name:14}{workers:>7}  {kind:15}{median * 1e3:8.2f}  {median / usual:.2f}")


if __name__ == "__main__":
    app.run(main)
