"""The baseline: the same MLP under Elastic Horovod 0.28.1, as its documentation says."""

from __future__ import annotations

import os
import time
from pathlib import Path

import horovod.tensorflow as hvd
import mlp_model
import tensorflow as tf

BATCH = 32
COMMIT_EVERY = 10


def main() -> None:
    """Trains until it is killed."""
    hvd.init()
    model = mlp_model.build()
    optimizer = tf.keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)
    x, y = (tf.constant(a[:BATCH]) for a in mlp_model.arrays())
    log = (Path(os.environ[mlp_model.STEP_LOG]) / f"{os.getpid()}").open("a", buffering=1)

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        sources = [v.value for v in model.trainable_variables]
        tape = hvd.DistributedGradientTape(tape)
        optimizer.apply(tape.gradient(loss, sources), model.trainable_variables)
        return loss

    variables = [v.value for v in (*model.variables, *optimizer.variables)]

    @hvd.elastic.run
    def train(state: hvd.elastic.TensorFlowState) -> None:
        while True:
            step().numpy()
            state.batch += 1
            log.write(f"{time.monotonic():.4f} {hvd.size()} {state.batch}\n")
            if state.batch % COMMIT_EVERY == 0:
                state.commit()

    train(hvd.elastic.TensorFlowState(variables=variables, batch=0))


if __name__ == "__main__":
    main()
