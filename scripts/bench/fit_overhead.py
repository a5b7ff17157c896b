"""Time per step of `model.fit` with `ElasticCallback`, alone, against plain `fit`.

Plain and elastic epochs alternate in one process, so that both see the same machine. Printed are
medians over epochs, and their ratios.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from absl import app, flags

from hvd_elastic_keras import env

env.set_defaults({"TF_CPP_MIN_LOG_LEVEL": "3"})

import keras  # noqa: E402
import numpy as np  # noqa: E402
from networks import small_resnet, tiny_mlp  # noqa: E402

from hvd_elastic_keras import ElasticCallback  # noqa: E402

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


def main(_: list[str]) -> None:
    """Prints the table."""
    kinds = {
        "plain fit": lambda size: [],
        "elastic, 1 micro-batch": lambda size: [ElasticCallback(micro_batch_size=size)],
        "elastic, default cut": lambda size: [ElasticCallback()],
    }
    models = {"tiny MLP": (tiny_mlp, 64, 300), "small ResNet": (small_resnet, 64, 30)}
    for name, (make, size, steps) in models.items():
        times: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(_REPETITIONS.value):
            for kind, callbacks in kinds.items():
                times[kind].append(measure(make, size, steps, callbacks(size)))
        plain = statistics.median(times["plain fit"])
        for kind, values in times.items():
            median = statistics.median(values)
            print(f"{name:14}{kind:26}{median * 1e3:9.2f} ms/step   ratio {median / plain:.3f}")


if __name__ == "__main__":
    app.run(main)
