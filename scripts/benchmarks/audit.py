"""Time per step with `audit`, alone, against the same training without it.

Trainings of both kinds alternate in one process, so that both see the same machine. Each training
gives the median of its steps, and the time of an epoch including its end (checkpoint and verdict).
Both leave out the first epoch. The table has medians of these values, their ratios, and the bytes
of a ledger per example.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import keras
import networks
import numpy as np
from absl import app, flags

from hvd_elastic_keras import Trainer, TrainingConfig

_REPETITIONS = flags.DEFINE_integer("repetitions", 10, "Trainings of each kind.", lower_bound=1)
BATCH_SIZE = 128
EPOCHS = 3
NETWORKS = {
    "tiny MLP": (networks.tiny_mlp, 2000),
    "small ResNet": (networks.small_resnet, 40),
}
"""The networks, and the steps per epoch of each."""


class StepTimes(keras.callbacks.Callback):
    """Measures seconds from the end of a step to the end of the next, after the first epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self.began = 0.0
        """The time at which the second epoch began."""
        self._last: float | None = None
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch, self._last = epoch, None
        if epoch == 1:
            self.began = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        now = time.perf_counter()
        if self._epoch and self._last is not None:
            self.seconds.append(now - self._last)
        self._last = now


class Measured(NamedTuple):
    """One training: seconds per step (median) and per epoch, bytes of ledger per example."""

    step_s: float
    epoch_s: float
    per_example: float


def measure(make: Callable[[], keras.Model], steps: int, audit: bool) -> Measured:
    """Trains once."""
    keras.utils.set_random_seed(0)
    model = make()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    random = np.random.default_rng(0)
    size = BATCH_SIZE * steps
    x = random.random((size, *model.input_shape[1:]), np.float32)
    times = StepTimes()
    config = TrainingConfig(global_batch_size=BATCH_SIZE, epochs=EPOCHS, audit=audit)
    with tempfile.TemporaryDirectory() as directory:
        data = (x, random.integers(0, 10, size))
        Trainer(model, data, config=config, callbacks=[times], job_dir=directory).fit()
        epoch_s = (time.perf_counter() - times.began) / (EPOCHS - 1)
        ledgers = sum(path.stat().st_size for path in Path(directory).glob("ledger/*"))
    return Measured(statistics.median(times.seconds), epoch_s, ledgers / size / EPOCHS)


def main(_: list[str]) -> None:
    """Prints the table."""
    rows = []
    for name, (make, steps) in NETWORKS.items():
        found: dict[bool, list[Measured]] = {False: [], True: []}
        for repetition in range(_REPETITIONS.value):
            # Alternate which one is first: a process grows slower or faster by itself.
            for audit in (True, False) if repetition % 2 else (False, True):
                found[audit].append(measure(make, steps, audit))
        step, audited_step = (statistics.median(m.step_s for m in found[k]) for k in (False, True))
        epoch, audited = (statistics.median(m.epoch_s for m in found[k]) for k in (False, True))
        rows.append(
            f"{name:14}{step * 1e3:8.3f} ms/step  audited {audited_step * 1e3:8.3f} ms/step  "
            f"ratio {audited_step / step:.3f}\n"
            f"{'':14}{epoch:8.3f} s for an epoch of {steps} steps with its end  "
            f"audited {audited:8.3f} s  ratio {audited / epoch:.3f}  "
            f"{max(m.per_example for m in found[True]):.1f} bytes per example"
        )
    print("\n".join(rows))


if __name__ == "__main__":
    app.run(main)
