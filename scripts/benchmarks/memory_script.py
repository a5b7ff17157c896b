"""A user's script of the memory benchmark: plain `fit`, or with the callback."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

if sys.argv[1] == "elastic":
    from hvd_elastic_keras import ElasticCallback

import keras
import numpy as np
from launches import peak_kib

PEAKS = "BENCH_PEAKS"
WIDTH, LAYERS = 2048, 12
BATCH_SIZE, STEPS = 64, 12


class Peak(keras.callbacks.Callback):
    """Notes the most memory that this process has held while it trained."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Notes the memory before `model.keras` is written, which Keras makes in memory."""
        Path(os.environ[PEAKS], str(os.getpid())).write_text(str(peak_kib()))


keras.utils.set_random_seed(0)
layers = keras.layers
model = keras.Sequential(
    [
        keras.Input((WIDTH,)),
        *(layers.Dense(WIDTH, activation="relu") for _ in range(LAYERS)),
        layers.Dense(10),
    ]
)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
random = np.random.default_rng(0)
x = random.random((BATCH_SIZE * STEPS, WIDTH), np.float32)
y = random.integers(0, 10, len(x))
callbacks = [Peak(), *([ElasticCallback()] if sys.argv[1] == "elastic" else [])]
model.fit(x, y, BATCH_SIZE, verbose=0, callbacks=callbacks)
