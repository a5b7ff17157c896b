"""Networks of benchmarks of whole jobs. The time per step of each epoch is noted."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import time
from pathlib import Path
from typing import Any

import keras
import networks
import numpy as np
import processors

STEP_TIMES = "BENCH_STEP_TIMES"
KIND = "BENCH_MODEL"
PIN = "BENCH_PIN"
"""If set, worker wN or the process of rank N runs on processor N."""
BATCH_SIZE = 64
NETWORKS = {
    "tiny MLP": (networks.tiny_mlp, 600),
    "small ResNet": (networks.small_resnet, 200),
    "wide MLP": (networks.wide_mlp, 20),
    "embedding": (networks.embedding, 20),
}
"""The networks and their steps per epoch.

An epoch takes a second or more. At its end, a job writes a checkpoint.
"""


BYTES_RECEIVED = 128
"""The offset in Linux's `tcp_info`."""


def received() -> int:
    """Returns the bytes received over the TCP connections that this process has at present."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed in the meantime, or not TCP
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as duplicate:
                info = duplicate.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                total += struct.unpack_from("<Q", info, BYTES_RECEIVED)[0]
    return total


class StepTimes(keras.callbacks.Callback):
    """Appends seconds and received bytes per step of each epoch to a file of this process."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the beginning of an epoch."""
        self._received = received()
        self._began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Writes the means of the epoch."""
        steps = NETWORKS[os.environ[KIND]][1]
        step_s = (time.perf_counter() - self._began) / steps
        step_bytes = (received() - self._received) / steps
        with (Path(os.environ[STEP_TIMES]) / f"{os.getpid()}").open("a") as file:
            file.write(f"{step_s} {step_bytes}\n")


def pin() -> None:
    """Takes the processor of this process if `PIN` is set. The check of the model has none."""
    number = os.environ.get("HVD_ELASTIC_WORKER_ID", "")[1:] or os.environ.get("HOROVOD_RANK")
    if os.environ.get(PIN) and number is not None:
        processors.take(int(number))


def model() -> keras.Model:
    """Returns the model asked for, compiled."""
    pin()
    network = NETWORKS[os.environ[KIND]][0]()
    network.compile(
        "adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    return network


def dataset(split: str) -> Any:
    """Returns random numbers: the benchmark is about time, not about learning."""
    if split != "train":
        return None
    make, steps = NETWORKS[os.environ[KIND]]
    random = np.random.default_rng(0)
    size = BATCH_SIZE * steps
    (given,) = make().inputs
    shape = size, *given.shape[1:]
    if given.dtype == "int32":
        return random.integers(0, networks.TABLE_ROWS, shape), random.integers(0, 10, size)
    return random.random(shape, np.float32), random.integers(0, 10, size)


def callbacks() -> list[keras.callbacks.Callback]:
    """Returns the clock."""
    return [StepTimes()]
