"""Time per step, and bytes that a worker receives, with `--deterministic` against the usual mode.

Each measurement is a separate job, because threads are settings of a process. The kinds take turns,
so that all see the same machine. The table has medians over the epochs of all repetitions, and
ratios of times to the usual mode. The first epoch of each job is left out.

All kinds compute micro-batches in a loop, as the deterministic mode must. "one thread" is the usual
mode with one thread per operation. The difference between it and "deterministic" is the cost of the
tree of sums and of TensorFlow's op determinism.
"""

from __future__ import annotations

import statistics

import rows
from absl import app, flags
from step_times import epochs_of

NAMES = ("tiny MLP", "small ResNet", "wide MLP")
EPOCHS = 3
KINDS = {
    "usual": ([], {}),
    "one thread": ([], {"TF_NUM_INTRAOP_THREADS": "1", "OMP_NUM_THREADS": "1"}),
    "deterministic": (["--deterministic"], {}),
}
"""Flags and environment variables."""

_REPETITIONS = flags.DEFINE_integer("repetitions", 3, "Jobs of each kind.", lower_bound=1)
_WORKERS = flags.DEFINE_list("workers", ["1", "2"], "Numbers of workers.")
_NETWORKS = flags.DEFINE_list("networks", list(NAMES), "Of these networks.")
_KINDS = flags.DEFINE_list("kinds", list(KINDS), 'Of these kinds; "usual" must be one of them.')


def measure(name: str, workers: str, kind: str) -> list[tuple[float, float]]:
    """Returns seconds and received bytes per step of one job's epochs, without the first one."""
    options, variables = KINDS[kind]
    common = [f"--num_workers={workers}", f"--epochs={EPOCHS}", "--micro_batch_size=8"]
    return epochs_of(name, [*common, "--micro_batches=loop", *options], variables)


def main(_: list[str]) -> None:
    """Prints the table."""
    cells = [(name, workers) for name in _NETWORKS.value for workers in _WORKERS.value]
    found: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for _ in range(_REPETITIONS.value):
        for name, workers in cells:
            for kind in _KINDS.value:
                found.setdefault((name, workers, kind), []).extend(measure(name, workers, kind))
    ratios: list[rows.Row] = []
    print(f"{'model':14}{'workers':>7}  {'kind':15}{'ms/step':>8}  ratio  {'KB/step':>8}")
    for (name, workers, kind), epochs in found.items():
        median, received = (statistics.median(values) for values in zip(*epochs, strict=True))
        usual = statistics.median(seconds for seconds, _ in found[name, workers, "usual"])
        print(
            f"{name:14}{workers:>7}  {kind:15}{median * 1e3:8.2f}  {median / usual:5.2f}  "
            f"{received / 1e3:8.0f}"
        )
        if kind == "deterministic":
            what = f"a step of the {name} with --deterministic, {workers} workers"
            against = "the usual mode, --micro_batches=loop"
            ratios.append(rows.Row(what=what, against=against, ratio=median / usual))
    rows.show(ratios)


if __name__ == "__main__":
    app.run(main)
