"""Time per step of `model.fit` with `ElasticCallback`, alone, against plain `fit`.

Plain and elastic epochs alternate in one process, so that both see the same machine. Printed are
medians over epochs, and their ratios.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

from absl import app, flags

from hvd_elastic_keras.common import env

env.set_defaults({"TF_CPP_MIN_LOG_LEVEL": "3"})

import keras  # noqa: E402
import numpy as np  # noqa: E402
import rows  # noqa: E402
from networks import (  # noqa: E402
    depthwise_net,
    dropout_net,
    recurrent_net,
    small_resnet,
    tiny_mlp,
    transformer,
)

from hvd_elastic_keras import ElasticCallback  # noqa: E402
from hvd_elastic_keras.common.options import AUTO, LOOP, RunOptions  # noqa: E402

_REPETITIONS = flags.DEFINE_integer("repetitions", 5, "Measured epochs of each kind.")


class EpochTime(keras.callbacks.Callback):
    """Seconds per step of the last epoch of a `fit`; the epochs before it warm up."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps
        self.step_s = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.step_s = (time.perf_counter() - self._began) / self._steps


def measure(
    make: Callable[[], keras.Model], batch_size: int, steps: int, callbacks: list[Any]
) -> float:
    """Seconds per step."""
    keras.utils.set_random_seed(0)
    model = make()
    model.compile(
        "sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    random = np.random.default_rng(0)
    size = batch_size * steps
    x = random.random((size, *model.input_shape[1:]), np.float32)
    y = random.integers(0, 10, size)
    timer = EpochTime(steps)
    model.fit(x, y, batch_size, epochs=3, verbose=0, callbacks=[timer, *callbacks])
    return timer.step_s


PLAIN = "plain fit"
KINDS: dict[str, tuple[str, Callable[[int], list[Any]]]] = {
    PLAIN: (AUTO, lambda size: []),
    "elastic, 1 micro-batch": (AUTO, lambda size: [ElasticCallback(micro_batch_size=size)]),
    "elastic, default cut": (AUTO, lambda size: [ElasticCallback()]),
    "the same, in a loop": (LOOP, lambda size: [ElasticCallback()]),
}
BATCH_SIZE = 64
NETWORKS = {
    "tiny MLP": (tiny_mlp, 300),
    "small ResNet": (small_resnet, 30),
    "dropout net": (dropout_net, 30),
    "transformer": (transformer, 30),
    "depthwise net": (depthwise_net, 30),
    "LSTM": (recurrent_net, 30),
}


def row(what: str, ratio: float) -> rows.Row:
    """Against plain `fit`, which computes each example once."""
    limit = "one pass of the same examples"
    return rows.Row(what=what, against=PLAIN, ratio=ratio, limit=limit, from_limit=ratio)


def main(_: list[str]) -> None:
    """Prints the table."""
    found: list[rows.Row] = []
    for name, (make, steps) in NETWORKS.items():
        times: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for _ in range(_REPETITIONS.value):
            for kind, (how, callbacks) in KINDS.items():
                os.environ[env.OPTIONS] = RunOptions(micro_batches=how).encode()
                times[kind].append(measure(make, BATCH_SIZE, steps, callbacks(BATCH_SIZE)))
        plain = statistics.median(times[PLAIN])
        for kind, values in times.items():
            median = statistics.median(values)
            print(f"{name:14}{kind:26}{median * 1e3:9.2f} ms/step", flush=True)
            if kind != PLAIN:
                found.append(row(f"a step of the {name}, {kind}", median / plain))
    rows.show(found)


if __name__ == "__main__":
    app.run(main)
