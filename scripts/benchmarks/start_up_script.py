"""A user's script of the benchmark of start-up: plain `fit`, or with the callback.

With "replaced", worker w1 kills itself, and the training ends when w2 is ready in its place.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

if sys.argv[1] != "plain":
    from hvd_elastic_keras import ElasticCallback

import keras
import numpy as np
import psutil
from networks import small_resnet

FIRST_STEP = "BENCH_FIRST_STEP"
BATCH_SIZE, STEPS = 64, 8


class FirstStep(keras.callbacks.Callback):
    """Notes, once among all workers, when the first step has been taken."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """The end of a step."""
        if batch == 0:
            path = Path(os.environ[FIRST_STEP])
            if not path.exists():
                path.write_text(json.dumps({"at": time.time(), "processor_s": processor_s()}))


def processor_s() -> float:
    """Seconds of processors that the command has cost so far, with all its processes."""
    spent = 0.0
    for process in psutil.process_iter():
        try:
            if process.environ().get(FIRST_STEP) == os.environ[FIRST_STEP]:
                spent += sum(process.cpu_times()[:4])  # with children that have ended
        except psutil.Error:
            continue
    return spent


class Replaced(keras.callbacks.Callback):
    """Kills w1, and ends the training when w2 is ready."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """The end of a step."""
        if os.environ["HVD_ELASTIC_WORKER_ID"] == "w1":
            os.kill(os.getpid(), signal.SIGKILL)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """The end of an epoch."""
        events = Path(os.environ["HVD_ELASTIC_JOB_DIR"], "events.jsonl").read_text()
        if any('"worker_ready"' in e and '"w2"' in e for e in events.splitlines()):
            self.model.stop_training = True


keras.utils.set_random_seed(0)
model = small_resnet()
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
random = np.random.default_rng(0)
x = random.random((BATCH_SIZE * STEPS, *model.input_shape[1:]), np.float32)
y = random.integers(0, 10, len(x))
callbacks = [FirstStep(), *([ElasticCallback()] if sys.argv[1] != "plain" else [])]
epochs = 1
if sys.argv[1] == "replaced":
    callbacks.append(Replaced())
    epochs = 1000
model.fit(x, y, BATCH_SIZE, epochs, verbose=0, callbacks=callbacks)
