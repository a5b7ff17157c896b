"""What a running step has to know of the present round, in variables that its graph reads."""

from __future__ import annotations

import functools
import threading
import time

import tensorflow as tf

from hvd_elastic_keras.step.step_clock import StepClock, StepSeconds
from hvd_elastic_keras.worker.session import Session

NO_STEP = -1


class World:
    """Read by the graph of a step, which is traced once for all rounds.

    Attributes:
      change_pending: 1.0 if everybody has to leave the round after the step that reads it, else
        0.0. The step reads it when its micro-batches are computed, just before the collective: a
        change that comes while a long step computes is known after that step, not after the next.
      has_others: whether there are other workers, so that sums go through a collective.
      rank: of this worker.
      num_workers: for graphs.
      size: the same for Python, no graph reads it.
      learning_rate_scale: of the present step, where the batch grows with the workers.
      computed: number of the newest step of which this worker has computed its part. On the CPU:
        heartbeats must not wait for a GPU to read it.
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
        """How long this worker has waited for its part of the batch that comes next."""
        self._part_began: float | None = None
        self._clock: StepClock | None = None
        self._session: Session | None = None
        self._lock = threading.Lock()

    @property
    def variables(self) -> list[tf.Variable]:
        """Those that are here."""
        return [v for v in vars(self).values() if isinstance(v, tf.Variable)]

    def follow(self, session: Session) -> None:
        """Reads from now on what this session knows."""
        self._session = session
        session.on_change(self.refresh)

    def refresh(self) -> None:
        """Takes the session's present knowledge; called when it changes, from any thread."""
        with self._lock:
            pending = self._session is not None and self._session.change_pending
            self.change_pending.assign(float(pending))

    def enter_round(self, rank: int, size: int) -> None:
        """Takes this worker's place in a round that begins."""
        self.has_others.assign(size > 1)
        self.rank.assign(rank)
        self.num_workers.assign(size)
        self.size = size
        self.computed.assign(NO_STEP)
        self.refresh()

    def scale_learning_rate(self, scale: float) -> None:
        """Sets what the next step multiplies its learning rate by."""
        if scale != self._scale:
            self.learning_rate_scale.assign(scale)
            self._scale = scale

    def begin_part(self, number: int) -> None:
        """This worker's part of a step begins, or would have if its batch had been there.

        Args:
          number: the one with which `PartitionedStep` is called.
        """
        self._taken = number
        if self._clock is not None:
            self._clock.begin()
        self._part_began = time.perf_counter() - self.waited_s

    @property
    def clock(self) -> StepClock:
        """Of this process: there is none until a graph asks for it."""
        self._clock = self._clock or StepClock()
        return self._clock

    def step_seconds(self) -> StepSeconds | None:
        """What the step that has just ended has spent its time on; None if it was not timed."""
        return None if self._clock is None else self._clock.seconds()

    def is_computing(self) -> bool:
        """Whether it is not done with its part. From any thread, while the step is taken."""
        return int(self.computed.numpy()) != self._taken

    def part_began(self) -> float:
        """When its part of the present step began, on the clock of `time.perf_counter`."""
        return time.perf_counter() if self._part_began is None else self._part_began


@functools.cache
def world_of_process() -> World:
    """What all compiled steps of this process read."""
    return World()
