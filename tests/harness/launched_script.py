"""Trains with `fit`, `Trainer` and a loop, for tests: alone, or under Horovod's own launcher.

    launched_script.py OUTPUT [lost]

Each rank leaves `RANK.npz` (weights after each training) and `RANK.json` (the rest) in OUTPUT. With
`lost`, rank 1 is killed in the first training.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hvd_elastic_keras.horovod as hvd
from hvd_elastic_keras import ElasticCallback, Trainer, TrainingConfig, is_root, root_only

OUTPUT = Path(sys.argv[1])
RANK = int(os.environ.get("HOROVOD_RANK", "0"))
OUTPUT.mkdir(parents=True, exist_ok=True)
random = np.random.default_rng(5)
x = random.normal(size=(90, 4)).astype(np.float32)
y = (x.sum(-1) > 0).astype(np.int32)
weights: dict[str, np.ndarray] = {}
notes: dict[str, Any] = {"calls": []}


def made(seed: int) -> keras.Model:
    """Returns a model. Each rank begins with its own weights; rank 0's weights count."""
    keras.utils.set_random_seed(seed + RANK)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(2, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    keras.utils.set_random_seed(seed)
    return model


def keep(name: str, model: keras.Model) -> None:
    weights.update({f"{name}{i}": v for i, v in enumerate(model.get_weights())})


class Noting(keras.callbacks.Callback):
    """Notes its calls on every rank."""

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        notes["calls"].append([epoch, sorted(logs or {})])
        if epoch == 1 and RANK == 1 and "lost" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)


def fit() -> None:
    model = made(1)
    history = model.fit(
        x,
        y,
        batch_size=20,
        epochs=3,
        validation_split=0.2,
        verbose=2,
        callbacks=[
            ElasticCallback(),
            Noting(),
            keras.callbacks.CSVLogger(OUTPUT / f"log-{RANK}.csv"),
            keras.callbacks.ModelCheckpoint(OUTPUT / "best.keras", save_best_only=True),
        ],
    )
    notes["history"] = history.history
    keep("fit", model)
    model.save(OUTPUT / "whole.keras")
    keep("loaded", keras.models.load_model(OUTPUT / "whole.keras"))
    with root_only() as root:
        if root:
            (OUTPUT / f"block-{RANK}").write_text("only once")
    notes["after_block"] = sorted(p.name for p in OUTPUT.glob("block-*"))
    notes["is_root"] = is_root()
    if is_root():
        model.save(OUTPUT / "by_root.keras")


def trainer() -> None:
    model = made(2)
    config = TrainingConfig(global_batch_size=30, micro_batch_size=10, epochs=2)
    result = Trainer(model, (x, y), validation=(x[:10], y[:10]), config=config).fit()
    notes["trainer"] = result.history
    keep("trainer", model)


def own_loop() -> None:
    model = made(3)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    hvd.init()

    @tf.function
    def step(inputs: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(labels, model(inputs))
            loss = tf.reduce_sum(losses) / 30
        tape = hvd.DistributedGradientTape(tape, op=hvd.Sum)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0)

    @hvd.elastic.run
    def train(state: Any) -> str:
        while state.batch < 6:
            rows = np.arange(30 * (state.batch % 3), 30 * (state.batch % 3) + 30)
            mine = rows[hvd.rank() :: hvd.size()]
            step(tf.constant(x[mine]), tf.constant(y[mine]))
            state.batch += 1
            state.commit()
        return "returned"

    notes["loop"] = [train(state), hvd.rank(), hvd.size()]
    keep("loop", model)


fit()
trainer()
own_loop()
np.savez(OUTPUT / f"{RANK}.npz", **weights)
(OUTPUT / f"{RANK}.json").write_text(json.dumps(notes))
