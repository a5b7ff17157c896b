"""What a running step has to know of the present round, in variables that its graph reads."""

from __future__ import annotations

import threading

import tensorflow as tf

from hvd_elastic_keras.worker.session import Session


class World:
    """Read by the graph of a step, which is traced once for all rounds.

    Attributes:
      change_pending: 1.0 if everybody has to leave the round after the step that reads it, else
        0.0. The step reads it when its micro-batches are computed, just before the collective: a
        change that comes while a long step computes is known after that step, not after the next.
      shared: whether there are other workers, so that sums go through a collective.
      rank: of this worker.
      size: number of workers; for Python, no graph reads it.
      learning_rate_scale: of the present step, where the batch grows with the workers.
    """

    def __init__(self) -> None:
        self.change_pending = tf.Variable(0.0, trainable=False, name="change_pending")
        self.shared = tf.Variable(True, trainable=False, name="shared")
        self.rank = tf.Variable(0, trainable=False, name="rank")
        self.size = 1
        self.learning_rate_scale = tf.Variable(1.0, trainable=False, name="learning_rate_scale")
        self._scale = 1.0
        self._session: Session | None = None
        self._lock = threading.Lock()

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
        self.shared.assign(size > 1)
        self.rank.assign(rank)
        self.size = size
        self.refresh()

    def scale_learning_rate(self, scale: float) -> None:
        """Sets what the next step multiplies its learning rate by."""
        if scale != self._scale:
            self.learning_rate_scale.assign(scale)
            self._scale = scale
