"""A model module for tests: digits, batch norm, dropout; and the faults of `faults.py`."""

from __future__ import annotations

import os
from typing import Any

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from hvd_elastic_keras import env, files
from hvd_elastic_keras.data.order import Order
from hvd_elastic_keras.protocol import Assignment
from hvd_elastic_keras.worker.communicator import Communicator
from model_zoo import digits
from tests.harness import faults


class _Here:
    """Where this worker is, for the fault points."""

    model: keras.Model | None = None
    place: Assignment | None = None


@keras.saving.register_keras_serializable("tests")
class FaultPoint(keras.layers.Layer):
    """Passes its input on; on the way a fault may happen."""

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        point = "train" if training else "evaluate"

        def happen() -> None:
            if _Here.place is not None and _Here.model is not None:
                step = int(_Here.model.optimizer.iterations.numpy())
                faults.happen(point, hvd.rank(), hvd.size(), step=step)
                faults.slow_down(worker_id())

        with tf.control_dependencies([tf.py_function(happen, [], [])]):
            return tf.identity(x)


def watch(model: keras.Model) -> None:
    """Takes the steps of faults from this model."""
    _Here.model = model


def worker_id() -> str:
    """That of this process; "alone" without a launcher."""
    return os.environ.get(env.WORKER_ID, "alone")


def model() -> keras.Model:
    """A convolution, batch norm and dropout: everything whose result might depend on the cut."""
    layers = keras.layers
    _Here.model = keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(8, 3, strides=2, use_bias=False),
            FaultPoint(),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(10),
        ]
    )
    _Here.model.compile(
        optimizer=keras.optimizers.SGD(0.05, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return _Here.model


def dataset(split: str) -> digits.Arrays:
    """A part of the digits: 7 steps of 64 and a smaller one."""
    images, labels = digits.load(split)
    size = 480 if split == "train" else 100
    return images[:size], labels[:size]


def _with_faults() -> None:
    """Puts fault points round the moments that user code cannot see."""
    start, broadcast_bytes = Communicator.start, Communicator.broadcast_bytes
    shut_down = Communicator.shut_down
    write_atomically, save_weights = files.write_atomically, keras.Model.save_weights

    def faulty_start(self: Communicator, place: Assignment) -> None:
        faults.happen("init", place.rank, place.size, round_number=place.round)
        start(self, place)
        _Here.place = place

    def faulty_broadcast(self: Communicator, data: bytes, name: str) -> bytes:
        received = broadcast_bytes(self, data, name)
        if _Here.place is not None:
            faults.happen(
                "sync", _Here.place.rank, _Here.place.size, round_number=_Here.place.round
            )
        return received

    def shut_down_and_forget(self: Communicator) -> None:
        shut_down(self)
        _Here.place = None  # trials and warm-ups of a later training happen nowhere

    def faulty_write(path: Any, write: Any) -> None:
        if path.name == files.MODEL and _Here.place is not None:
            faults.happen("save", _Here.place.rank, _Here.place.size)
        write_atomically(path, write)

    def faulty_save(self: keras.Model, *args: Any, **kwargs: Any) -> None:
        if _Here.place is not None:
            step = int(self.optimizer.iterations)
            faults.happen("checkpoint", _Here.place.rank, _Here.place.size, step=step)
        save_weights(self, *args, **kwargs)

    indices = Order.indices

    def wrong_indices(self: Order, positions: tf.Tensor) -> tf.Tensor:
        """One example too far, in the second epoch."""
        found = indices(self, positions)
        return (found + 1) % self.num_examples if self.epoch == 1 else found

    if faults.reads_wrongly(worker_id()):
        Order.indices = wrong_indices
    keras.Model.save_weights = faulty_save
    Communicator.start = faulty_start
    Communicator.broadcast_bytes = faulty_broadcast
    Communicator.shut_down = shut_down_and_forget
    files.write_atomically = faulty_write


_with_faults()
