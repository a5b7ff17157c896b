"""A model module for tests: digits, batch norm and dropout, with the points of `faults.py`."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import Any

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.protocol import Assignment
from hvd_elastic_keras.data.plan.order import Order
from hvd_elastic_keras.keras_internals import file_writers
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.step.partitioned_step import PartitionedStep
from hvd_elastic_keras.worker.horovod_runtime import Communicator
from hvd_elastic_keras.worker.transfer import frames
from model_zoo import digits
from tests.harness import faults

MIDDLE = 10
"""Chunks of 1 MiB after which a transfer of state counts as half done."""


class _Here:
    """This worker's place and progress, for the fault points."""

    model: keras.Model | None = None
    place: Assignment | None = None
    step = 0
    """Optimizer steps finished when the present step began."""
    witness: Callable[[Any, int], None] | None = None
    """Called with the rows that this worker computes in a training step, and the step's number."""


@keras.saving.register_keras_serializable("tests")
class FaultPoint(keras.layers.Layer):
    """Passes its input on; a fault may happen on the way."""

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        point = "train" if training else "evaluate"

        def happen() -> None:
            if _Here.place is not None and _Here.model is not None:
                # With a single worker, the optimizer may raise its counter before its gradients are
                # computed. With several, a worker may still wait for its state when a step begins.
                iterations = _Here.model.optimizer.iterations
                step = _Here.step if hvd.size() == 1 else int(iterations.numpy())
                faults.happen(point, hvd.rank(), hvd.size(), step=step)

        with tf.control_dependencies([tf.py_function(happen, [], [])]):
            return tf.identity(x)


def watch(model: keras.Model) -> None:
    """Makes the faults' step numbers follow this model's optimizer."""
    _Here.model = model


def worker_id() -> str:
    """Returns the id of this process's worker; "alone" without a launcher."""
    return os.environ.get(env.WORKER_ID, "alone")


def model() -> keras.Model:
    """Returns a model of layers whose results might depend on how a batch is split."""
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
    """Returns a part of the digits: 7 steps of 64 and a smaller one."""
    images, labels = digits.load(split)
    size = 480 if split == "train" else 100
    return images[:size], labels[:size]


def _happens_amid(point: str, transfer: Callable[..., None]) -> Callable[..., None]:
    """Returns a transfer in which a fault may happen at the `MIDDLE`th chunk of a connection."""
    counts: dict[socket.socket, int] = {}

    def faulty(connection: socket.socket, chunk: frames.Chunk) -> None:
        counts[connection] = counts.get(connection, 0) + 1
        place = _Here.place
        if counts[connection] == MIDDLE and place is not None:
            faults.happen(point, place.rank, place.size, round_number=place.round)
        transfer(connection, chunk)

    return faulty


def _with_faults() -> None:
    """Puts fault points around the moments that user code cannot see."""
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
        _Here.place = None  # no faults in trials and warm-ups of a later training

    def faulty_write(path: Any, write: Any) -> None:
        if path.name == files.MODEL and _Here.place is not None:
            faults.happen("save", _Here.place.rank, _Here.place.size)
        write_atomically(path, write)

    def faulty_save(self: keras.Model, *args: Any, **kwargs: Any) -> None:
        if _Here.place is not None:
            step = int(self.optimizer.iterations)
            faults.happen("checkpoint", _Here.place.rank, _Here.place.size, step=step)
        save_weights(self, *args, **kwargs)

    take = PartitionedStep.__call__

    def witnessed(self: PartitionedStep, batch: Any, step: int, *args: Any, **kwargs: Any) -> Any:
        """Calls the witness with the rows of this worker.

        A model's own Python code gets whole batches, so it cannot tell which rows are this
        worker's.
        """
        here = _Here
        if here.model is not None:
            here.step = int(here.model.optimizer.iterations.numpy())
        trains = self.train and not (args and args[0]) and not kwargs.get("stop")
        if here.witness and here.place is not None and here.model is not None and trains:
            here.witness(batch.data, here.step)
        return take(self, batch, step, *args, **kwargs)

    rows_of = PartitionedStep._rows

    def slow_rows(self: PartitionedStep, data: Any, place: Any, began: Any, *more: Any) -> Any:
        count = tf.where(place.has_rows, tf.size(place.offsets) - 1, 0)
        with tf.control_dependencies([] if began is None else [began]):
            slept = tf.py_function(lambda n: time.sleep(float(n) * seconds), [count], [])
        with tf.control_dependencies([slept]):
            return [tf.identity(t) for t in rows_of(self, data, place, began, *more)]

    seconds = faults.seconds_per_micro_batch(worker_id())
    if seconds:
        PartitionedStep._rows = slow_rows
    flush = file_writers.flush

    def faulty_flush(callback: keras.callbacks.Callback, hook: str) -> None:
        """Lets a fault happen after a callback has written, before the system knows the data."""
        if isinstance(callback, keras.callbacks.TensorBoard) and _Here.place is not None:
            step = int(callback.model.optimizer.iterations)
            faults.happen(f"flush {hook}", _Here.place.rank, _Here.place.size, step=step)
        flush(callback, hook)

    indices = Order.indices

    def wrong_indices(self: Order, positions: tf.Tensor) -> tf.Tensor:
        """Returns the index of the next example instead, in the second epoch."""
        found = indices(self, positions)
        return (found + tf.cast(tf.equal(self.epoch, 1), found.dtype)) % self.num_examples

    if faults.reads_wrongly(worker_id()):
        Order.indices = wrong_indices
    frames.send = _happens_amid("give", frames.send)
    frames.receive = _happens_amid("take", frames.receive)
    keras.Model.save_weights = faulty_save
    PartitionedStep.__call__ = witnessed
    file_writers.flush = faulty_flush
    Communicator.start = faulty_start
    Communicator.broadcast_bytes = faulty_broadcast
    Communicator.shut_down = shut_down_and_forget
    files.write_atomically = faulty_write


_with_faults()
