"""A script that calls `fit` inside of a function of `elastic.run`, for tests.

    fit_inside_script.py OUTPUT dataset|epochs

The weights must not depend on the workers. Every process that reaches the end leaves `<worker>.npz`
and `<worker>.json` in OUTPUT.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hvd_elastic_keras.horovod as hvd
from hvd_elastic_keras import ElasticCallback
from tests.harness import fault_model

OUTPUT, MODE = Path(sys.argv[1]), sys.argv[2]
EPOCHS = 3
OUTPUT.mkdir(parents=True, exist_ok=True)

keras.utils.set_random_seed(1)
hvd.init()
model = fault_model.model()
images, labels = fault_model.dataset("train")
held_out = fault_model.dataset("validation")
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(480).batch(64)
state = hvd.elastic.KerasState(model, epoch=0, rounds=0, seen=[])
sizes: list[int] = []
state.register_reset_callbacks([lambda: sizes.append(hvd.size())])


class Steps(keras.callbacks.Callback):
    """Counts steps, and leaves values in the state at the end of an epoch."""

    steps = 0

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        state.seen = [*state.seen, epoch]


@hvd.elastic.run
def train(state: Any) -> dict[str, Any]:
    state.rounds += 1
    steps = Steps()
    common = {"verbose": 2, "validation_data": held_out}
    callbacks = [
        ElasticCallback(micro_batch_size=8),
        steps,
        keras.callbacks.CSVLogger(OUTPUT / "log.csv"),
    ]
    if MODE == "epochs":
        while state.epoch < EPOCHS:
            history = model.fit(
                images, labels, batch_size=64, epochs=1, callbacks=callbacks, **common
            )
            state.epoch += 1
            state.commit()
    else:
        history = model.fit(dataset, epochs=EPOCHS, callbacks=callbacks, **common)
    return {"steps": steps.steps, "epochs": history.epoch, "losses": history.history["loss"]}


result = train(state)
worker = fault_model.worker_id()
variables = [*model.variables, *model.optimizer.variables]
np.savez(
    OUTPUT / f"{worker}.npz",
    **{f"{i}": np.asarray(v) for i, v in enumerate(variables) if "seed_generator" not in v.path},
)
done = {"result": result, "rounds": state.rounds, "sizes": sizes, "seen": state.seen}
(OUTPUT / f"{worker}.json").write_text(json.dumps(done))
