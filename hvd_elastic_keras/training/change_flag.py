"""Whether this worker knows of a membership change, readable from inside a running step."""

from __future__ import annotations

import threading

import tensorflow as tf

from hvd_elastic_keras.worker.session import Session


class ChangeFlag:
    """1.0 if everybody has to leave the round after the step that reads it, else 0.0.

    The step reads the variable when its micro-batches are computed, just before the collective: a
    change that comes while a long step computes is known after that step, not after the next.
    """

    def __init__(self, session: Session) -> None:
        self.variable = tf.Variable(0.0, trainable=False, name="change_pending")
        self._session = session
        self._lock = threading.Lock()

    def refresh(self) -> None:
        """Takes the session's present knowledge; called when it changes, from any thread."""
        with self._lock:
            self.variable.assign(float(self._session.change_pending))
