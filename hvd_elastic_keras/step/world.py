"""Facts about the present round, in variables that the graph of a running step reads.

`StepClock` measures how long a step computes, and how long the sum over the workers takes after
that. The graph calls into Python when it has finished a part. A call takes tens of microseconds, so
only one step in `EVERY_S` seconds is timed. In the others, the graph only reads one variable.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from hvd_elastic_keras.worker.session import Session

NO_STEP = -1

EVERY_S = 0.1


class World:
    """Facts about the present round and step, for graphs that are traced once for all rounds.

    Attributes:
      change_pending: 1.0 if all workers have to leave the round after the step that reads it, else
        0.0. The step reads it when its micro-batches are computed, just before the collective. So
        a change during a long step is known after that step, not after the next one.
      has_others: whether there are other workers, so that sums go through a collective.
      rank: rank of this worker.
      num_workers: number of workers, for graphs.
      size: the same number, for Python; no graph reads it.
      learning_rate_scale: factor of the learning rate in the present step, where the batch grows
        with the workers.
      computed: number of the newest step whose part this worker has computed. It is on the CPU,
        since heartbeats must not wait for a GPU to read it.
    """

    def __init__(self) -> None:
        self.change_pending = tf.Variable(0.0, trainable=False, name="change_pending")
        self.has_others = tf.Variable(True, trainable=False, name="has_others")
        self.rank = tf.Variable(0, trainable=False, name="rank")
        self.num_workers = tf.Variable(1, trainable=False, name="num_workers")
        self.size = 1
        self.learning_rate_scale = tf.Variable(1.0, trainable=False, name="learning_rate_scale")
        with tf.device("CPU:0"):
            self.computed = tf.Variable(NO_STEP, trainable=False, dtype=tf.int64, name="computed")
        self._taken = NO_STEP
        self._scale = 1.0
        self.waited_s = 0.0
        """Seconds that this worker has waited for its part of the next batch."""
        self._part_began: float | None = None
        self._clock: StepClock | None = None
        self._session: Session | None = None
        self._lock = threading.Lock()

    @property
    def variables(self) -> list[tf.Variable]:
        """All variables of this object."""
        return [v for v in vars(self).values() if isinstance(v, tf.Variable)]

    def follow(self, session: Session) -> None:
        """Takes membership changes from this session from now on."""
        self._session = session
        session.on_change(self.refresh)

    def refresh(self) -> None:
        """Copies `change_pending` from the session. Called when it changes, from any thread."""
        with self._lock:
            pending = self._session is not None and self._session.change_pending
            self.change_pending.assign(float(pending))

    def enter_round(self, rank: int, size: int) -> None:
        """Sets this worker's place in a round that begins."""
        self.has_others.assign(size > 1)
        self.rank.assign(rank)
        self.num_workers.assign(size)
        self.size = size
        self.computed.assign(NO_STEP)
        self.refresh()

    def scale_learning_rate(self, scale: float) -> None:
        """Sets the factor of the learning rate in the next step."""
        if scale != self._scale:
            self.learning_rate_scale.assign(scale)
            self._scale = scale

    def begin_part(self, number: int) -> None:
        """Notes that this worker's part of a step begins.

        `part_began` is earlier by the time that the worker waited for its batch.

        Args:
          number: number of the step, with which `PartitionedStep` is called.
        """
        self._taken = number
        if self._clock is not None:
            self._clock.begin()
        self._part_began = time.perf_counter() - self.waited_s

    @property
    def clock(self) -> StepClock:
        """The clock of this process. It is made when a graph first asks for it."""
        self._clock = self._clock or StepClock()
        return self._clock

    def step_seconds(self) -> StepSeconds | None:
        """Returns how the step that has just ended spent its time; None if it was not timed."""
        return None if self._clock is None else self._clock.seconds()

    def is_computing(self) -> bool:
        """Returns whether this worker still computes its part of a step. Any thread may call it."""
        return int(self.computed.numpy()) != self._taken

    def part_began(self) -> float:
        """Returns when this worker could have begun its part, by `time.perf_counter`."""
        return time.perf_counter() if self._part_began is None else self._part_began


@functools.cache
def world_of_process() -> World:
    """Returns the `World` that all compiled steps of this process read."""
    return World()


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
