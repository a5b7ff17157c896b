"""What checkpoints that are written in the background cost a training.

First how much longer the step takes in which one is begun, against one copy of the state in
memory, which is what a training must wait for unless it writes to other memory from then on. Then
how much later all is done, for each checkpoint, against saving in place: what writes has to share
the processors and the memory with the steps.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from absl import app, flags

from hvd_elastic_keras.common import env

env.set_defaults({"TF_CPP_MIN_LOG_LEVEL": "3"})

import keras  # noqa: E402
import numpy as np  # noqa: E402
import rows  # noqa: E402

from hvd_elastic_keras import Trainer, TrainingConfig  # noqa: E402
from hvd_elastic_keras.keras_internals.model_variables import variables_of  # noqa: E402
from hvd_elastic_keras.state.checkpoint.store import CheckpointStore  # noqa: E402

_MEGABYTES = flags.DEFINE_list("megabytes", ["100", "1000"], "Sizes of the state.")
_CHECKPOINTS = flags.DEFINE_integer("checkpoints", 4, "Of each size.", lower_bound=2)
VARIABLES = 16
BATCH_SIZE = 64
BETWEEN_S = 6.0
"""Seconds of steps from one checkpoint to the next: enough for its writing to end meanwhile."""


class Weights(keras.layers.Layer):
    """Holds so many bytes, all of which a step changes."""

    def __init__(self, megabytes: int) -> None:
        super().__init__()
        size = megabytes * 10**6 // VARIABLES // 4
        self._held = [self.add_weight(shape=(size,), initializer="ones") for _ in range(VARIABLES)]

    def call(self, x: Any) -> Any:
        """Scales its input with the mean of all."""
        return x * (sum(keras.ops.mean(held) for held in self._held) / VARIABLES)


class Periods(keras.callbacks.Callback):
    """Seconds from the beginning of each step to that of the next one."""

    def __init__(self) -> None:
        super().__init__()
        self._began: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """The beginning of a step."""
        self._began.append(time.perf_counter())

    @property
    def seconds(self) -> list[float]:
        """Of each step but the last."""
        return [after - before for before, after in itertools.pairwise(self._began)]


def model(megabytes: int) -> keras.Model:
    """A small network with so much state."""
    layers = keras.layers
    made = keras.Sequential(
        [
            keras.Input((256,)),
            Weights(megabytes),
            layers.Dense(1024, activation="relu"),
            layers.Dense(10),
        ]
    )
    made.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return made


def trained(megabytes: int, steps: int, every: int, directory: Path) -> list[float]:
    """A training with a checkpoint after so many steps each; 0 writes none.

    Returns:
      Seconds of each step.
    """
    periods = Periods()
    random = np.random.default_rng(0)
    x = random.random((BATCH_SIZE * steps, 256), np.float32)
    y = random.integers(0, 10, len(x))
    config = TrainingConfig(
        global_batch_size=BATCH_SIZE,
        micro_batch_size=BATCH_SIZE,
        epochs=1,
        checkpoint_every_n_epochs=0,
        checkpoint_every_n_steps=every,
    )
    with contextlib.redirect_stdout(io.StringIO()):
        Trainer(
            model(megabytes), (x, y), config=config, callbacks=[periods], job_dir=directory
        ).fit()
    return periods.seconds


def copy_s(arrays: list[np.ndarray]) -> float:
    """Seconds of one copy in memory, into memory that is new, as that of a checkpoint is."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        copies = [array.copy() for array in arrays]
        times.append(time.perf_counter() - began)
        del copies
    return statistics.median(times)


def measured(megabytes: int, scratch: Path) -> list[rows.Row]:
    """The rows of one size."""
    held = variables_of(model(megabytes)).all
    one_copy_s = copy_s([variable.numpy() for variable in held])
    store, in_place = CheckpointStore(scratch / "in_place"), []
    for step in range(_CHECKPOINTS.value):
        began = time.perf_counter()
        store.save(step, held, {})
        in_place.append(time.perf_counter() - began)
    usual_s = statistics.median(trained(megabytes, 30, 0, scratch / "none")[5:])
    every = max(4, round(BETWEEN_S / usual_s))
    steps = every * _CHECKPOINTS.value + 1
    quiet = trained(megabytes, steps, 0, scratch / "quiet")
    busy = trained(megabytes, steps, every, scratch / "background")
    usual_s = statistics.median(quiet)
    parts = [busy[i : i + every] for i in range(every - 1, len(busy) - every + 1, every)]
    pause_s = statistics.median(max(part[:3]) for part in parts) - usual_s
    later_s = statistics.median(sum(part) for part in parts) - every * statistics.mean(quiet)
    save_s = statistics.median(in_place)
    name = f"{megabytes} MB of state"
    return [
        rows.Row(
            what=f"{name}: a step waits for a checkpoint that begins",
            against="saving in place",
            ratio=pause_s / save_s,
            limit="one copy of the memory",
            from_limit=pause_s / one_copy_s,
        ),
        rows.Row(
            what=f"{name}: all is done later, for each checkpoint",
            against="saving in place",
            ratio=later_s / save_s,
        ),
    ]


def main(_: list[str]) -> None:
    """Prints the rows of all sizes."""
    found: list[rows.Row] = []
    for megabytes in _MEGABYTES.value:
        with tempfile.TemporaryDirectory() as scratch:
            found += measured(int(megabytes), Path(scratch))
    rows.show(found)


if __name__ == "__main__":
    app.run(main)
