"""What the time of a step is spent on: computing, the sum over the workers, assigning.

The graph says when it is done with a part, by a call into Python. That takes tens of microseconds,
so only one step in `EVERY_S` is timed; in the others the graph looks at one variable.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

EVERY_S = 0.1


class StepSeconds(NamedTuple):
    """Of one step, as this worker has seen it.

    Attributes:
      compute: until its own part was computed.
      allreduce: from there until the sums of all workers were there, waiting for slower ones
        included. What travels while the rest is computed counts as computing.
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
        """A step begins; its batch is there."""
        self._began = self._clock()
        wanted = self._began - self._timed_at >= EVERY_S
        if wanted != self._is_wanted:
            self._wanted.assign(wanted)
            self._is_wanted = wanted

    def seconds(self) -> StepSeconds | None:
        """Those of the step that has ended; None if it was not timed."""
        if not self._is_wanted or not self._began <= self._computed_at <= self._summed_at:
            return None
        self._timed_at = self._summed_at
        return StepSeconds(self._computed_at - self._began, self._summed_at - self._computed_at)

    def computed_alone(self) -> None:
        """A step has ended that had nobody to wait for."""
        self._computed_at = self._summed_at = self._clock()

    def computed(self) -> tf.Tensor:
        """For the graph: this worker has computed its part."""
        return self._noted(self._note_computed)

    def summed(self) -> tf.Tensor:
        """For the graph: the sums of all workers are there."""
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
