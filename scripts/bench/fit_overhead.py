"""Time per step of `model.fit` with `ElasticCallback`, alone, against plain `fit`.

Plain and elastic trainings alternate in one process, so that both see the same machine. Of each
kind the fastest epoch counts, that which others disturbed least.
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

_REPETITIONS = flags.DEFINE_integer("repetitions", 3, "Trainings of each kind.")


class EpochTimes(keras.callbacks.Callback):
    """Seconds per step of the epochs of a `fit`."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps
        self.step_s: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.step_s.append((time.perf_counter() - self._began) / self._steps)


def measure(
    make: Callable[[], keras.Model], batch_size: int, steps: int, callbacks: list[Any]
) -> list[float]:
    """Seconds per step of each epoch after those that warm up."""
    keras.utils.set_random_seed(0)
    model = make()
    model.compile(
        "sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    random = np.random.default_rng(0)
    size = batch_size * steps
    x = random.random((size, *model.input_shape[1:]), np.float32)
    y = random.integers(0, 10, size)
    timer = EpochTimes(steps)
    model.fit(x, y, batch_size, epochs=WARM_UP + EPOCHS, verbose=0, callbacks=[timer, *callbacks])
    return timer.step_s[WARM_UP:]


PLAIN = "plain fit"
KINDS: dict[str, tuple[str, Callable[[int], list[Any]]]] = {
    PLAIN: (AUTO, lambda size: []),
    "elastic, 1 micro-batch": (AUTO, lambda size: [ElasticCallback(micro_batch_size=size)]),
    "elastic, default cut": (AUTO, lambda size: [ElasticCallback()]),
    "the same, in a loop": (LOOP, lambda size: [ElasticCallback()]),
}
BATCH_SIZE = 64
WARM_UP, EPOCHS = 1, 5
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
                times[kind] += measure(make, BATCH_SIZE, steps, callbacks(BATCH_SIZE))
        plain = min(times[PLAIN])
        for kind, values in times.items():
            least, median = min(values), statistics.median(values)
            print(
                f"{name:14}{kind:26}{least * 1e3:9.2f} ms/step, median {median * 1e3:9.2f}",
                flush=True,
            )
            if kind != PLAIN:
                found.append(row(f"a step of the {name}, {kind}", least / plain))
    rows.show(found)


if __name__ == "__main__":
    app.run(main)
