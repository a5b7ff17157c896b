"""Time per step of two workers on this machine, against a plain Horovod loop under `horovodrun`.

Each measurement is a job of its own, started as a user starts it, but that each worker has a
processor for itself; the kinds take turns. A ratio is the median of the ratios of one turn, of
which each job counts with the median of its epochs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import rows
from absl import app, flags
from step_times import PINNED, epochs_of, plain_epochs_of

WORKERS = 2
EPOCHS = 8
NAMES = ("tiny MLP", "small ResNet")
PLAIN = "a plain Horovod loop"


def elastic(network: str, *options: str) -> list[tuple[float, float]]:
    """Epochs of a job."""
    return epochs_of(network, [f"--num_workers={WORKERS}", f"--epochs={EPOCHS}", *options], PINNED)


KINDS: dict[str, Callable[[str], list[tuple[float, float]]]] = {
    PLAIN: lambda network: plain_epochs_of(network, WORKERS, EPOCHS, PINNED),
    "1 micro-batch each": lambda network: elastic(network, "--micro_batch_size=32"),
    "default cut": elastic,
}

_REPETITIONS = flags.DEFINE_integer("repetitions", 5, "Jobs of each kind.", lower_bound=1)
_NETWORKS = flags.DEFINE_list("networks", list(NAMES), "Of these networks.")


def measure(network: str) -> list[rows.Row]:
    """Prints times of a step, and compares them with the plain loop."""
    turns = [
        {
            kind: statistics.median(seconds for seconds, _ in train(network))
            for kind, train in KINDS.items()
        }
        for _ in range(_REPETITIONS.value)
    ]
    found = []
    for kind in KINDS:
        ratio = statistics.median(turn[kind] / turn[PLAIN] for turn in turns)
        milliseconds = statistics.median(turn[kind] for turn in turns) * 1e3
        print(f"{network:14}{kind:22}{milliseconds:8.2f} ms/step   ratio {ratio:.2f}", flush=True)
        if kind != PLAIN:
            what = f"a step of the {network}, {WORKERS} workers, {kind}"
            found.append(rows.Row(what=what, against=PLAIN, ratio=ratio))
    return found


def main(_: list[str]) -> None:
    """Prints the table."""
    rows.show([found for network in _NETWORKS.value for found in measure(network)])


if __name__ == "__main__":
    app.run(main)
