"""A script with a training loop of its own, for tests.

    elastic_script.py OUTPUT COMMIT_EVERY [eager|accumulate|durable]

The global batch of a step depends only on the step's number. Each worker takes a share of it, so
the weights do not depend on the workers. In OUTPUT, rank 0 leaves `weights.npz`. Each process
writes a JSON line for everything it does to `trace-<pid>.jsonl`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import keras
import numpy as np
import tensorflow as tf

import hvd_elastic_keras.horovod as hvd
from tests.harness import (
    fault_model,  # noqa: F401  puts fault points round hvd.init() and the sync
    faults,
)

OUTPUT, COMMIT_EVERY = Path(sys.argv[1]), int(sys.argv[2])
STEPS_PER_EPOCH, EPOCHS, GLOBAL_BATCH = 10, 3, 24
OUTPUT.mkdir(parents=True, exist_ok=True)
TRACE = (OUTPUT / f"trace-{os.getpid()}.jsonl").open("a", buffering=1)


def note(what: str, **fields: Any) -> None:
    TRACE.write(json.dumps({"what": what, **fields}) + "\n")


def fail_like_a_collective(*_: object) -> NoReturn:
    raise hvd.elastic.HorovodInternalError("this is a test")


signal.signal(signal.SIGUSR1, fail_like_a_collective)
# Later workers start from other weights: only the sync makes them equal.
keras.utils.set_random_seed(0 if os.environ.get("HVD_ELASTIC_WORKER_ID", "w0") == "w0" else 1)
hvd.init()
model = keras.Sequential(
    [
        keras.Input((6,)),
        keras.layers.Dense(8, activation="tanh"),
        keras.layers.Dense(2),
    ]
)
accumulation = 4 if "accumulate" in sys.argv else None
optimizer = keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=accumulation)
loss_of = keras.losses.MeanSquaredError(reduction="sum")
counter = tf.Variable(0, dtype=tf.int64)


def share(epoch: int, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns this worker's part of a global batch: x of shape [n, 6], y of shape [n, 2]."""
    random = np.random.default_rng(100 * epoch + batch)
    x = random.normal(size=(GLOBAL_BATCH, 6)).astype(np.float32)
    mine = slice(hvd.rank(), None, hvd.size())
    return x[mine], np.stack([x[mine].sum(-1), x[mine, 0] * x[mine, 1]], -1)


@tf.function(
    input_signature=[
        tf.TensorSpec((None, 6), tf.float32),
        tf.TensorSpec((None, 2), tf.float32),
    ]
)
def step(x: tf.Tensor, y: tf.Tensor) -> None:
    with tf.GradientTape() as tape:
        loss = loss_of(y, model(x, training=True)) / GLOBAL_BATCH
    tape = hvd.DistributedGradientTape(tape, op=hvd.Sum)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    counter.assign_add(1)


if "eager" in sys.argv:
    step = step.python_function

state = hvd.elastic.ElasticState(
    model,
    optimizer,
    variables=[counter],
    checkpoint_every_n_commits=5 if "durable" in sys.argv else None,
    epoch=0,
    batch=0,
    sizes=[],
    best=np.full(2, np.inf),
)
step(*share(0, 0))
state.restore()
state.register_reset_callbacks([lambda: note("reset", rank=hvd.rank(), size=hvd.size())])


@hvd.elastic.run
def train(state: Any) -> str:
    note("enter", epoch=state.epoch, batch=state.batch, sizes=state.sizes, best=list(state.best))
    state.sizes = [*state.sizes, hvd.size()]
    while state.epoch < EPOCHS:
        while state.batch < STEPS_PER_EPOCH:
            number = STEPS_PER_EPOCH * state.epoch + state.batch
            faults.happen("loop", hvd.rank(), hvd.size(), step=number)
            step(*share(state.epoch, state.batch))
            note("step", step=number, size=hvd.size())
            state.batch += 1
            state.best[:] = number
            if (number + 1) % COMMIT_EVERY == 0:
                state.commit()
            else:
                state.check_host_updates()
        state.epoch += 1
        state.batch = 0
    faults.happen("end", hvd.rank(), hvd.size())
    return "trained"


result = train(state)
note("returned", result=result, rank=hvd.rank(), size=hvd.size(), counter=int(counter.numpy()))
if hvd.rank() == 0:
    weights = {f"w{i}": v for i, v in enumerate(model.get_weights())}
    slots = {f"o{i}": np.asarray(v) for i, v in enumerate(optimizer.variables)}
    np.savez(OUTPUT / "weights.npz", counter=counter.numpy(), **weights, **slots)
