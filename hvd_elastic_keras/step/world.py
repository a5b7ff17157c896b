"""Facts about the present round, in variables that the graph of a running step reads."""

from __future__ import annotations

import functools
import threading
import time

import tensorflow as tf

from hvd_elastic_keras.step.step_clock import StepClock, StepSeconds
from hvd_elastic_keras.worker.session import Session

NO_STEP = -1


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
