"""A user's script of the benchmark of start-up: plain `fit`, or with the callback."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

if sys.argv[1] == "elastic":
    from hvd_elastic_keras import ElasticCallback

import keras
import numpy as np
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
                path.write_text(str(time.time()))


keras.utils.set_random_seed(0)
model = small_resnet()
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
random = np.random.default_rng(0)
x = random.random((BATCH_SIZE * STEPS, *model.input_shape[1:]), np.float32)
y = random.integers(0, 10, len(x))
callbacks = [FirstStep(), *([ElasticCallback()] if sys.argv[1] == "elastic" else [])]
model.fit(x, y, BATCH_SIZE, verbose=0, callbacks=callbacks)
