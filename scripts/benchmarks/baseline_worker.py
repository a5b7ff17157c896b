"""The baselines: a loop under Elastic Horovod, or a loop with checkpoints.

The first argument names a module of this directory with the model. The second one, if there is one,
names a file: then the loop is not elastic. It saves its variables in the file every few seconds,
and begins with those that it finds there.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf
from step_log import STEP_LOG

WORKERS = 3
COMMIT_EVERY = 10
"""Steps, as in the examples of Elastic Horovod."""
SAVE_EVERY_S = 10.0


class WorkerState(hvd.elastic.ObjectState):
    """The state of a loop under Elastic Horovod.

    `TensorFlowState` broadcasts its variables when it is made. A worker that joins would do so
    while the others synchronise their states: they would wait for each other until Gloo's timeout.
    `TensorFlowKerasState` does not work with Keras 3.
    """

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        self._variables = variables
        self._values: list[np.ndarray] = []
        self.batch = 0
        super().__init__(bcast_object=hvd.broadcast_object, get_rank=hvd.rank, batch=0)
        self.save()

    def save(self) -> None:
        """Copies the variables."""
        self._values = [v.numpy() for v in self._variables]
        super().save()

    def restore(self) -> None:
        """Goes back to the copies."""
        for variable, value in zip(self._variables, self._values, strict=True):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """Takes over the state of the first worker."""
        hvd.broadcast_variables(self._variables, root_rank=0)
        super().sync()
        self.save()


class Training:
    """The training of one worker, which takes a constant part of the global batch."""

    def __init__(self) -> None:
        module = importlib.import_module(sys.argv[1])
        self.model, self.loss = module.build(), keras.losses.get(module.LOSS)
        self.optimizer = keras.optimizers.Adam(1e-3)
        self.optimizer.build(self.model.trainable_variables)
        rows = module.BATCH_SIZE // WORKERS
        self.x, self.y = (tf.constant(a[:rows]) for a in module.arrays())
        self.variables = [v.value for v in (*self.model.variables, *self.optimizer.variables)]
        self._log = (Path(os.environ[STEP_LOG]) / f"{os.getpid()}").open("a", buffering=1)

    def traced(self) -> tf.types.experimental.PolymorphicFunction:
        """Returns the step."""

        @tf.function
        def step() -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self.loss(self.y, self.model(self.x, training=True)))
            sources = [v.value for v in self.model.trainable_variables]
            gradients = hvd.DistributedGradientTape(tape).gradient(loss, sources)
            self.optimizer.apply(gradients, self.model.trainable_variables)
            return loss

        return step

    def note(self, number: int) -> None:
        """Notes a finished step."""
        self._log.write(f"{time.monotonic():.4f} {hvd.size()} {number}\n")


def train_elastically(training: Training) -> None:
    """Trains under Elastic Horovod until the process is killed."""
    step = training.traced()

    @hvd.elastic.run
    def train(state: WorkerState) -> None:
        while True:
            step().numpy()
            state.batch += 1
            training.note(state.batch)
            if state.batch % COMMIT_EVERY == 0:
                state.commit()

    train(WorkerState(training.variables))


def train_with_checkpoints(training: Training, path: Path) -> None:
    """Trains from the last checkpoint until the process is killed."""
    number = 0
    if path.exists():
        with np.load(path) as saved:
            number = int(saved["step"])
            for index, variable in enumerate(training.variables):
                variable.assign(saved[str(index)])
    hvd.broadcast_variables(training.variables, root_rank=0)
    step, saved_at = training.traced(), time.monotonic()
    while True:
        step().numpy()
        number += 1
        training.note(number)
        if hvd.rank() == 0 and time.monotonic() - saved_at >= SAVE_EVERY_S:
            values = {str(index): v.numpy() for index, v in enumerate(training.variables)}
            unfinished = path.with_suffix(".unfinished.npz")
            np.savez(unfinished, step=number, **values)
            unfinished.replace(path)
            saved_at = time.monotonic()


def main() -> None:
    """Trains until it is killed."""
    hvd.init()
    training = Training()
    if len(sys.argv) > 2:
        train_with_checkpoints(training, Path(sys.argv[2]))
    else:
        train_elastically(training)


if __name__ == "__main__":
    main()
