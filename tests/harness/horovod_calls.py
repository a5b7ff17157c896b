"""What a process with Horovod does for the tests of the patch, one call at a time."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf
from horovod.tensorflow.mpi_ops import _grouped_allreduce


def serve(connection: Connection) -> None:
    """Executes calls until the other end is closed. A call has one reply, or several."""
    while True:
        try:
            name, arguments = connection.recv()
        except EOFError:
            return
        replies = globals()[name](*arguments)
        for reply in [replies] if isinstance(replies, dict) else replies:
            connection.send(reply)


SETS: list[Any] = []
"""The process sets of `init`."""


ANSWER_S = 20.0
"""How long a sum may wait for its answer after Horovod was shut down."""
ENDED = (tf.errors.UnknownError, tf.errors.FailedPreconditionError)
"""Errors of a collective whose world ends."""


def init(environ: Mapping[str, str], sets: Sequence[Sequence[int]] = ()) -> dict[str, Any]:
    for name in [name for name in os.environ if name.startswith("HOROVOD_")]:
        del os.environ[name]
    os.environ.update(environ)
    SETS[:] = [hvd.ProcessSet(ranks) for ranks in sets]
    try:
        hvd.init(process_sets=SETS)
    except ValueError as error:
        return {"ok": False, "error": str(error)}
    return {"ok": True, "rank": hvd.rank(), "size": hvd.size()}


def places() -> dict[str, Any]:
    return {
        "local": [hvd.local_rank(), hvd.local_size()],
        "cross": [hvd.cross_rank(), hvd.cross_size()],
    }


def sums_of_sets() -> dict[str, Any]:
    """Returns the sum of the ranks of all workers, and of each set that this worker is in."""
    sums: list[float | None] = []
    for number, one in enumerate([hvd.global_process_set, *SETS]):
        rank = tf.constant(float(hvd.rank()))
        found = (
            hvd.allreduce(rank, op=hvd.Sum, name=f"set{number}", process_set=one)
            if one.included()
            else None
        )
        sums.append(None if found is None else float(found))
    return {"sums": sums}


def allreduce(value: float) -> dict[str, Any]:
    return {"sum": float(hvd.allreduce(tf.constant(value), op=hvd.Sum, name="t").numpy())}


def sums_of_ranks(lengths: Sequence[int]) -> dict[str, Any]:
    """Returns whether all numbers of all sums are right, for two types of each length."""
    right = []
    for dtype in (np.float32, np.int64):
        for length in lengths:
            numbers = np.arange(length, dtype=dtype)
            found = hvd.allreduce(
                tf.constant(numbers * hvd.rank()), op=hvd.Sum, name=f"{dtype.__name__}{length}"
            )
            expected = numbers * (hvd.size() * (hvd.size() - 1) // 2)
            right.append(bool(np.array_equal(found.numpy(), expected)))
    return {"right": right}


def allreduce_group(count: int) -> dict[str, Any]:
    os.environ["HOROVOD_ELASTIC"] = "1"  # else nothing is handed to Horovod by one process
    ones = [tf.constant(1.0)] * count
    return {"sums": [float(s) for s in hvd.grouped_allreduce(ones, op=hvd.Sum, name="group")]}


def shutdowns_within_a_group(count: int, times: int, environ: Mapping[str, str]) -> dict[str, Any]:
    """Shuts Horovod down at moments spread over the sum of a large group of tensors.

    Returns how many of the sums were answered, with an error or without one.
    """

    @tf.function(autograph=False)
    def sums(values: tf.Tensor) -> list[tf.Tensor]:  # TensorFlow folds the sums of constants
        return _grouped_allreduce(tf.unstack(values), op=hvd.Sum, name="group")

    values = tf.ones(count)

    def add() -> None:
        with contextlib.suppress(*ENDED):
            sums(values)

    init(environ)
    sums(values)
    began = time.monotonic()
    sums(values)
    whole_s = time.monotonic() - began
    for moment in range(times):
        thread = threading.Thread(target=add, daemon=True)
        thread.start()
        thread.join(whole_s * moment / times)
        hvd.shutdown()
        thread.join(ANSWER_S)
        if thread.is_alive():
            return {"answered": moment}
        init(environ)
    return {"answered": times}


def memory_of_sums(count: int) -> dict[str, Any]:
    """Returns which sums stand where the tensors stood."""
    os.environ["HOROVOD_ELASTIC"] = "1"

    def address(tensor: tf.Tensor) -> tf.Tensor:
        return tf.numpy_function(lambda array: np.int64(array.ctypes.data), [tensor], tf.int64)

    @tf.function(autograph=False)
    def addresses() -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        made = [tf.random.uniform([1000]) for _ in range(count)]
        before = [address(tensor) for tensor in made]
        with tf.control_dependencies(before):
            sums = hvd.grouped_allreduce(made, op=hvd.Sum, name="in_place")
        return before, [address(tensor) for tensor in sums]

    before, after = addresses()
    return {"in_place": [int(a) == int(b) for a, b in zip(before, after, strict=True)]}


def processor_times() -> dict[int, int]:
    threads = [int(thread) for thread in os.listdir("/proc/self/task")]
    return {n: int(Path(f"/proc/self/task/{n}/schedstat").read_text().split()[0]) for n in threads}


def processor_times_of_allreduces(
    count: int, processor: int, environ: Mapping[str, str]
) -> dict[str, Any]:
    os.sched_setaffinity(0, {processor})
    before = processor_times()
    init(environ)
    threads = sorted(processor_times().keys() - before.keys())
    ones = [tf.ones(300), tf.ones(300)]
    reduce = tf.function(lambda: hvd.grouped_allreduce(ones, op=hvd.Sum, name="small"))
    reduce()
    begin = processor_times()
    for _ in range(count):
        reduce()
    end = processor_times()
    return {"nanoseconds": [end[n] - begin[n] for n in threads]}


def allreduce_until_error(length: int) -> Iterator[dict[str, Any]]:
    try:
        hvd.allreduce(tf.ones(length), op=hvd.Sum, name="loop")
        yield {"first_step": True}
        while True:
            hvd.allreduce(tf.ones(length), op=hvd.Sum, name="loop")
    except tf.errors.UnknownError as error:
        yield {"error": str(error)}


def train(steps: int) -> dict[str, Any]:
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(0.05)
    x = tf.random.stateless_normal((16, 4), (1, hvd.rank()))
    y = tf.reduce_sum(x, axis=1, keepdims=True)

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        gradients = hvd.grouped_allreduce(gradients, op=hvd.Average, name="gradients")
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    losses = [float(step()) for _ in range(steps)]
    return {
        "first": losses[0],
        "last": losses[-1],
        "weights": [float(tf.reduce_sum(v.value)) for v in model.trainable_variables],
    }


def shutdown() -> dict[str, Any]:
    hvd.shutdown()
    return {"initialized": hvd.is_initialized()}
