"""Time per step of two workers on this machine, against a plain Horovod loop under `horovodrun`.

That loop runs with the installed Horovod, and with Horovod as it was released, which a loop without
this project has. Each measurement is a separate job, started as a user starts it, except that each
worker has a processor for itself. The kinds take turns. Each job counts with the median of its
epochs. A ratio is the median over turns of the ratio of two jobs of one turn.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import released_horovod
import rows
from absl import app, flags
from step_times import PINNED, epochs_of, plain_epochs_of

WORKERS = 2
EPOCHS = 8
NAMES = ("tiny MLP", "small ResNet", "embedding")
PLAIN = "a plain Horovod loop"
RELEASED = "a plain loop with Horovod as released"
ALONE = "computing one's part alone"
ELASTIC: Mapping[str, Sequence[str]] = {
    "1 micro-batch each": ["--micro_batch_size=32"],
    "default cut": [],
}


def kinds(released: Mapping[str, str]) -> dict[str, Callable[[str], list[tuple[float, float]]]]:
    """Returns the kinds that take turns. Each returns the epochs of one job."""

    def plain(workers: int, environment: Mapping[str, str]) -> Callable[[str], Any]:
        pinned = {**PINNED, **environment}
        return lambda network: plain_epochs_of(network, workers, EPOCHS, pinned, WORKERS)

    def elastic(options: Sequence[str]) -> Callable[[str], Any]:
        command = [f"--num_workers={WORKERS}", f"--epochs={EPOCHS}", *options]
        return lambda network: epochs_of(network, command, PINNED)

    return {
        ALONE: plain(1, {}),
        PLAIN: plain(WORKERS, {}),
        RELEASED: plain(WORKERS, released),
        **{kind: elastic(options) for kind, options in ELASTIC.items()},
    }


_REPETITIONS = flags.DEFINE_integer("repetitions", 5, "Jobs of each kind.", lower_bound=1)
_NETWORKS = flags.DEFINE_list("networks", list(NAMES), "Of these networks.")


def measure(network: str, released: Mapping[str, str]) -> list[rows.Row]:
    """Prints the times of a step, and compares them with those of the plain loops."""
    turns = [
        {
            kind: statistics.median(seconds for seconds, _ in train(network))
            for kind, train in kinds(released).items()
        }
        for _ in range(_REPETITIONS.value)
    ]

    def ratio(kind: str, to: str) -> float:
        return statistics.median(turn[kind] / turn[to] for turn in turns)

    for kind in turns[0]:
        milliseconds = statistics.median(turn[kind] for turn in turns) * 1e3
        line = f"{network:14}{kind:40}{milliseconds:8.2f} ms/step   ratio {ratio(kind, PLAIN):.2f}"
        print(line, flush=True)
    return [
        rows.Row(
            what=f"a step of the {network}, {WORKERS} workers, {kind}",
            against=to,
            ratio=ratio(kind, to),
            limit=ALONE,
            from_limit=ratio(kind, ALONE),
        )
        for to in (PLAIN, RELEASED)
        for kind in ELASTIC
    ]


def main(_: list[str]) -> None:
    """Prints the table."""
    with released_horovod.variables() as released:
        rows.show([found for network in _NETWORKS.value for found in measure(network, released)])


if __name__ == "__main__":
    app.run(main)
