"""The costs that checkpoints written in the background have for a training.

The first result is how much longer a step takes in which a checkpoint is begun, against one copy of
the state in memory. A training must wait for that copy, unless it writes to other memory from then
on.

The second result is the delay of the whole training for each checkpoint, against saving in place:
the writer shares processors and memory with the steps.

The usual time of a step is taken from the last steps before the next checkpoint. Copies and savings
in place are measured before and after the training.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import app, flags

from hvd_elastic_keras.settings import env

env.set_defaults({"TF_CPP_MIN_LOG_LEVEL": "3"})

import keras  # noqa: E402
import numpy as np  # noqa: E402
import rows  # noqa: E402

from hvd_elastic_keras import Trainer, TrainingConfig  # noqa: E402
from hvd_elastic_keras.keras_internals.model_variables import KerasVariable, variables_of  # noqa: E402
from hvd_elastic_keras.state.checkpoint.store import CheckpointStore  # noqa: E402

_MEGABYTES = flags.DEFINE_list("megabytes", ["100", "1000"], "Sizes of the state.")
_CHECKPOINTS = flags.DEFINE_integer("checkpoints", 4, "Of each size.", lower_bound=2)
VARIABLES = 16
BATCH_SIZE = 64
BETWEEN_S = 6.0
"""Seconds of steps from one checkpoint to the next: enough time to write a checkpoint."""


class Weights(keras.layers.Layer):
    """Holds this many megabytes, all of which a step changes."""

    def __init__(self, megabytes: int) -> None:
        super().__init__()
        size = megabytes * 10**6 // VARIABLES // 4
        self._held = [self.add_weight(shape=(size,), initializer="ones") for _ in range(VARIABLES)]

    def call(self, x: Any) -> Any:
        """Scales its input by the mean of all weights."""
        return x * (sum(keras.ops.mean(held) for held in self._held) / VARIABLES)


class Periods(keras.callbacks.Callback):
    """Measures seconds from the beginning of each step to the beginning of the next one."""

    def __init__(self) -> None:
        super().__init__()
        self._began: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Notes the beginning of a step."""
        self._began.append(time.perf_counter())

    @property
    def seconds(self) -> list[float]:
        """The seconds of each step but the last."""
        return [after - before for before, after in itertools.pairwise(self._began)]


def model(megabytes: int) -> keras.Model:
    """Returns a small network with this much additional state."""
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
    """Trains with a checkpoint after every `every` steps; 0 writes none.

    Returns:
      The seconds of each step.
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


def copies_s(held: Sequence[KerasVariable]) -> list[float]:
    """Returns the seconds of copies into new memory; a checkpoint also copies into new memory."""
    arrays, times = [variable.numpy() for variable in held], []
    for _ in range(3):
        began = time.perf_counter()
        copies = [array.copy() for array in arrays]
        times.append(time.perf_counter() - began)
        del copies
    return times


def savings_s(held: Sequence[KerasVariable], directory: Path) -> list[float]:
    """Returns the seconds of checkpoints for which a training would wait."""
    store, times = CheckpointStore(directory), []
    for step in range(2):
        began = time.perf_counter()
        store.save(step, held, {})
        times.append(time.perf_counter() - began)
    return times


def measured(megabytes: int, scratch: Path) -> list[rows.Row]:
    """Measures the rows of one size."""
    held = variables_of(model(megabytes)).all
    copies, in_place = copies_s(held), savings_s(held, scratch / "before")
    usual_s = statistics.median(trained(megabytes, 30, 0, scratch / "none")[5:])
    every = max(4, round(BETWEEN_S / usual_s))
    steps = every * _CHECKPOINTS.value + 1
    seconds = trained(megabytes, steps, every, scratch / "background")
    copies += copies_s(held)
    in_place += savings_s(held, scratch / "after")
    parts = [seconds[i : i + every] for i in range(every - 1, len(seconds) - every + 1, every)]
    usual = [statistics.median(part[-every // 3 :]) for part in parts]
    both = list(zip(parts, usual, strict=True))
    pause_s = statistics.median(max(part[:3]) - usual_s for part, usual_s in both)
    later_s = statistics.median(sum(part) - every * usual_s for part, usual_s in both)
    save_s, one_copy_s = statistics.median(in_place), statistics.median(copies)
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
