"""A user's script of the start-up benchmark: plain `fit`, or with the callback.

With "replaced", worker w1 kills itself, and the training ends when w2 is ready in its place. With
`--model`, this file is the model module of such a job.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__" and sys.argv[1] != "plain":
    from hvd_elastic_keras import ElasticCallback

import keras
import numpy as np
import psutil
from networks import small_resnet

FIRST_STEP = "BENCH_FIRST_STEP"
BATCH_SIZE, STEPS = 64, 8


class FirstStep(keras.callbacks.Callback):
    """Notes when the first step has been taken; only the first worker to do so writes it."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes the end of the first step."""
        if batch == 0:
            path = Path(os.environ[FIRST_STEP])
            if not path.exists():
                path.write_text(json.dumps({"at": time.time(), "processor_s": processor_s()}))


def processor_s() -> float:
    """Returns the processor seconds that the command has used so far, with all its processes."""
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
        """Kills w1."""
        if os.environ["HVD_ELASTIC_WORKER_ID"] == "w1":
            os.kill(os.getpid(), signal.SIGKILL)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Ends the training if w2 is ready."""
        events = Path(os.environ["HVD_ELASTIC_JOB_DIR"], "events.jsonl").read_text()
        if any('"worker_ready"' in e and '"w2"' in e for e in events.splitlines()):
            self.model.stop_training = True


def model() -> keras.Model:
    """Returns a small ResNet, compiled."""
    found = small_resnet()
    found.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return found


def dataset(split: str) -> tuple[Any, Any] | None:
    """Returns random images and labels."""
    random = np.random.default_rng(0)
    x = random.random((BATCH_SIZE * STEPS, *small_resnet().input_shape[1:]), np.float32)
    return (x, random.integers(0, 10, len(x))) if split == "train" else None


def callbacks() -> list[keras.callbacks.Callback]:
    """Returns the callbacks of a job of `--model`."""
    return [Replaced()]


def main(kind: str) -> None:
    """Trains as a user's script does."""
    keras.utils.set_random_seed(0)
    trained, (x, y) = model(), dataset("train") or ()
    chosen: list[keras.callbacks.Callback] = [FirstStep()]
    chosen += [ElasticCallback()] if kind != "plain" else []
    chosen += [Replaced()] if kind == "replaced" else []
    epochs = 1000 if kind == "replaced" else 1
    trained.fit(x, y, BATCH_SIZE, epochs, verbose=0, callbacks=chosen)


if __name__ == "__main__":
    main(sys.argv[1])
