"""A limit of the micro-batches that are computed in one pass; it falls when memory runs out.

One pass holds the activations of all its micro-batches. Only a pass that runs out of memory shows
that they do not fit: shares grow when workers leave, and sequences differ in length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import tensorflow as tf

from hvd_elastic_keras.common.errors import CollectiveFailedError
from hvd_elastic_keras.observe.notices import notices

T = TypeVar("T")
UNLIMITED = 2**30


class TogetherLimit:
    """The most micro-batches in one pass; the limit is lowered when memory runs out.

    Args:
      most: the limit at the beginning; None: any number.
    """

    def __init__(self, most: int | None) -> None:
        self.is_one = most == 1
        self._most = UNLIMITED if most is None else most
        with tf.device("CPU:0"):
            self._read = tf.Variable(self._most, trainable=False, name="together_limit")

    @property
    def is_limited(self) -> bool:
        """Whether there may be more micro-batches than are computed in one pass."""
        return self._most < UNLIMITED

    def in_graph(self) -> tf.Tensor:
        """Returns the present limit, int32 of shape []."""
        return self._read.read_value()

    def run(
        self,
        step: Callable[[], T],
        micro_batches: int,
        *,
        computing: Callable[[], bool],
        repeatable: Callable[[], bool],
    ) -> T:
        """Takes a step, with fewer micro-batches in one pass if memory does not hold them all.

        Args:
          step: takes the step, with the limit that `in_graph` returns.
          micro_batches: number of micro-batches in this worker's share.
          computing: returns whether the micro-batches are still being computed. The rest of the
            step needs the same memory for any number of micro-batches in one pass.
          repeatable: returns whether the step can be taken again while the others wait. It can if
            nothing of it has been sent yet, and no other worker has seen it.

        Raises:
          tf.errors.ResourceExhaustedError: even one micro-batch is too large, or memory ran out
            after the micro-batches.
          CollectiveFailedError: memory ran out in a step that is not repeatable. From the next
            round on, a pass has one micro-batch.
        """
        while True:
            try:
                return step()
            except tf.errors.ResourceExhaustedError as error:
                had = min(micro_batches, self._most)
                if had <= 1 or not computing():
                    raise
                again = repeatable()
                self._lower(had, had // 2 if again else 1)
                if not again:
                    text = "memory ran out while this worker computed its part of a step"
                    raise CollectiveFailedError(text) from error

    def _lower(self, had: int, most: int) -> None:
        self._most = most
        self._read.assign(most)
        notices.tell(
            f"memory ran out with {had} micro-batches in one pass; from now on {most} "
            f"(--micro_batches_together={most} starts with that)"
        )
