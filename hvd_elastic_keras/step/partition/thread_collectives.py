"""Collectives between threads of one process. Each thread is a worker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf

MOST_WAIT_S = 600


class Meeting:
    """Exchanges values between threads, and checks that all threads make the same calls."""

    def __init__(self, num_workers: int) -> None:
        self._barrier = threading.Barrier(num_workers, timeout=MOST_WAIT_S)
        self._given: list[Any] = [None] * num_workers

    def exchanged(self, worker: int, call: tuple[str, str], value: Any) -> list[Any]:
        """Returns the values of all workers.

        Raises:
          ValueError: the workers have made different calls.
        """
        self._given[worker] = (call, value)
        self._barrier.wait()
        given = list(self._given)
        self._barrier.wait()
        calls = {one for one, _ in given}
        if len(calls) > 1:
            raise ValueError(f"workers make different calls: {calls}")
        return [value for _, value in given]

    def abort(self) -> None:
        """Lets no worker wait for a worker that has failed."""
        self._barrier.abort()


class ThreadCollectives:
    """The collectives of one thread.

    Args:
      half: the type in which gradients travel. None: their own type.
    """

    def __init__(self, meeting: Meeting, worker: int, half: tf.DType | None = None) -> None:
        self._meeting, self._worker, self._half = meeting, worker, half

    def summed(
        self, tensors: list[tf.Tensor], name: str, *, rounded: bool = False
    ) -> list[tf.Tensor]:
        """Adds in the order of the workers. Rounded tensors are rounded before and after."""
        if rounded and self._half is not None:
            rounds = [tf.cast(tf.cast(t, self._half), t.dtype) for t in tensors]
            sums = self.summed(rounds, name)
            return [tf.cast(tf.cast(s, self._half), s.dtype) for s in sums]
        given = self._meeting.exchanged(self._worker, ("sum", name), tensors)
        return [tf.add_n(list(each)) for each in zip(*given, strict=True)]

    def gathered(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """Gathers tensors in the order of the workers."""
        return tf.concat(self._meeting.exchanged(self._worker, ("gather", name), tensor), 0)

    def extreme(self, tensor: tf.Tensor, kind: str, name: str) -> tf.Tensor:
        """Returns an extreme over all workers."""
        reduce = {
            "Max": tf.reduce_max,
            "Min": tf.reduce_min,
            "All": tf.reduce_all,
            "Any": tf.reduce_any,
        }[kind]
        return reduce(tf.stack(self._meeting.exchanged(self._worker, (kind, name), tensor)), 0)


def in_threads(function: Callable[[int], Any], number: int) -> list[Any]:
    """Calls the function with 0 to `number` - 1, in threads, and returns the results.

    Raises the first error that is not a consequence of another one.
    """
    with ThreadPoolExecutor(number) as pool:
        futures = [pool.submit(function, i) for i in range(number)]
    errors = [e for f in futures if (e := f.exception()) is not None]
    for error in sorted(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
        raise error
    return [f.result() for f in futures]
