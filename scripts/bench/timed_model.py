"""Networks of benchmarks of whole jobs; the time per step of each epoch is noted."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import keras
import networks
import numpy as np

STEP_TIMES = "BENCH_STEP_TIMES"
KIND = "BENCH_MODEL"
PIN = "BENCH_PIN"
"""Set: worker wN has processor N for itself, as far as this job is concerned."""
BATCH_SIZE = 64
NETWORKS = {
    "tiny MLP": (networks.tiny_mlp, 200),
    "small ResNet": (networks.small_resnet, 20),
}
"""And their steps per epoch."""


class StepTimes(keras.callbacks.Callback):
    """Appends the seconds per step of each epoch to a file of this process."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """The beginning."""
        self._began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """The end."""
        step_s = (time.perf_counter() - self._began) / NETWORKS[os.environ[KIND]][1]
        with (Path(os.environ[STEP_TIMES]) / f"{os.getpid()}").open("a") as file:
            file.write(f"{step_s}\n")


def _pin() -> None:
    processor = int(os.environ["HVD_ELASTIC_WORKER_ID"][1:])
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {processor})


def model() -> keras.Model:
    """The model that is asked for, compiled."""
    if os.environ.get(PIN) and "HVD_ELASTIC_WORKER_ID" in os.environ:
        _pin()
    network = NETWORKS[os.environ[KIND]][0]()
    network.compile(
        "adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    return network


def dataset(split: str) -> Any:
    """Random numbers: the benchmark is about time, not about learning."""
    if split != "train":
        return None
    make, steps = NETWORKS[os.environ[KIND]]
    random = np.random.default_rng(0)
    size = BATCH_SIZE * steps
    x = random.random((size, *make().input_shape[1:]), np.float32)
    return x, random.integers(0, 10, size)


def callbacks() -> list[keras.callbacks.Callback]:
    """The clock."""
    return [StepTimes()]
