"""Measures how long a step computes, and how long the sum over the workers takes after that.

The graph calls into Python when it has finished a part. A call takes tens of microseconds, so only
one step in `EVERY_S` seconds is timed. In the others, the graph only reads one variable.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

EVERY_S = 0.1


class StepSeconds(NamedTuple):
    """Seconds of one step, as this worker has measured them.

    Attributes:
      compute: from the beginning until this worker's part was computed. Collectives that run
        meanwhile are included.
      allreduce: from then until the sums of all workers were there. Waiting for slower workers is
        included.
    """

    compute: float
    allreduce: float


class StepClock:
    """Times some steps of this process.

    Args:
      clock: seconds of a steady clock.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        with tf.device("CPU:0"):
            self._wanted = tf.Variable(False, trainable=False, name="timed_step")
        self._is_wanted = False
        self._timed_at = self._began = float("-inf")
        self._computed_at = self._summed_at = float("-inf")

    def begin(self) -> None:
        """Notes that a step begins and its batch is there."""
        self._began = self._clock()
        wanted = self._began - self._timed_at >= EVERY_S
        if wanted != self._is_wanted:
            self._wanted.assign(wanted)
            self._is_wanted = wanted

    def seconds(self) -> StepSeconds | None:
        """Returns the seconds of the step that has just ended; None if it was not timed."""
        if not self._is_wanted or not self._began <= self._computed_at <= self._summed_at:
            return None
        self._timed_at = self._summed_at
        return StepSeconds(self._computed_at - self._began, self._summed_at - self._computed_at)

    def computed_alone(self) -> None:
        """Notes the end of a step without other workers to wait for."""
        self._computed_at = self._summed_at = self._clock()

    def computed(self) -> tf.Tensor:
        """Returns an operation for the graph: it notes that this worker has computed its part."""
        return self._noted(self._note_computed)

    def summed(self) -> tf.Tensor:
        """Returns an operation for the graph: it notes that the sums of all workers are there."""
        return self._noted(self._note_summed)

    def _noted(self, note: Callable[[], float]) -> tf.Tensor:
        return tf.cond(
            self._wanted.read_value(),
            lambda: tf.ensure_shape(tf.numpy_function(note, [], tf.float64), []),
            lambda: tf.constant(0.0, tf.float64),
        )

    def _note_computed(self) -> float:
        self._computed_at = self._clock()
        return self._computed_at

    def _note_summed(self) -> float:
        self._summed_at = self._clock()
        return self._summed_at
