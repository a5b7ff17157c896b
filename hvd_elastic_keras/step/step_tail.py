"""What travels with the last collective of a partitioned step: who takes it, and of what."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.data.plan import example_ids
from hvd_elastic_keras.data.plan.example_ids import PIECES
from hvd_elastic_keras.step.step_options import StepOptions
from hvd_elastic_keras.step.step_result import Logs, StepResult
from hvd_elastic_keras.step.worker_rows import Place
from hvd_elastic_keras.step.world import World

COUNT_AND_FLAGS = 3
"""Numbers at the beginning of the tail: examples, "membership change pending", "stop wanted"; after
them the digest of the examples' ids and the workers' speeds, where they are wanted."""
STOP_MESSAGE = "elastic: a callback wants to stop, so nobody takes this step"
SKIP_MESSAGE = "elastic: not finite, so nobody takes this step"


class StepTail:
    """The count of examples, the flags, the digest and the workers' speeds.

    Args:
      world: what a graph has to know of the present round.
      options: what of it is wanted.
    """

    def __init__(self, world: World, options: StepOptions) -> None:
        self._world = world
        self._options = options
        self.pieces = PIECES if options.audited else 0
        """Of the digest of ids."""
        self.clock = world.clock if options.timed else None
        """Hears when the parts of some steps are done."""

    @property
    def spec(self) -> tf.TensorSpec:
        """Of the tail, and of the sum of all."""
        length = COUNT_AND_FLAGS + self.pieces + self._options.measured_workers
        return tf.TensorSpec([length], tf.float32)

    def began(self) -> tf.Tensor | None:
        """When this worker could begin its part, in seconds; None if nobody wants to know."""
        return now(self._world.part_began) if self._options.measured_workers else None

    def of(self, before: Iterable[Any], place: Place, began: Any) -> tf.Tensor:
        """The count of examples, the flags, the digest and, in its place, this worker's speed.

        Shape [COUNT_AND_FLAGS + digest + measured workers].
        """
        with tf.control_dependencies(list(before)):  # as late as possible
            change_pending = self._world.change_pending.read_value()
            done = [self._world.computed.assign(place.step, read_value=False)]
            if self.clock is not None:
                done.append(self.clock.computed())
        with tf.control_dependencies([d for d in done if d is not None]):  # None when run eagerly
            count = tf.cast(place.size, tf.float32)
        numbers = [[count, change_pending, tf.cast(place.stop, tf.float32)]]
        tail = tf.concat([*numbers, tf.cast(place.digest, tf.float32)], 0)
        if began is None:
            return tail
        with tf.control_dependencies(list(before)):
            seconds = tf.cast(now() - began, tf.float32)
        own = tf.one_hot(self._world.rank.read_value(), self._options.measured_workers)
        return tf.concat([tail, own * tf.math.divide_no_nan(seconds, count)], 0)

    def agreed(self, tail: tf.Tensor, place: Place) -> list[Any]:
        """Whether all workers take the step, and have its rows, each once."""
        count, _, stop = tf.unstack(tail[:COUNT_AND_FLAGS])
        # On all workers alike: the wish of one ends the training before this step.
        checks = there([tf.debugging.assert_equal(stop, 0.0, message=STOP_MESSAGE)])
        text = "The workers did not compute each example of the global batch exactly once."
        # After the other one: whose data have ended takes part in a stop with no examples.
        with tf.control_dependencies(checks):
            total = tf.cast(place.total, tf.float32)
            checks += there([tf.debugging.assert_equal(count, total, message=text)])
        return checks


def there(operations: Iterable[Any]) -> list[Any]:
    """Operations without the None that an eager check gives."""
    return [o for o in operations if o is not None]


def result_of(
    logs: Logs, tail: tf.Tensor | tf.Variable, pieces: int, *, skipped: bool = False
) -> StepResult:
    """What the workers agree on by the sum of their tails, whose digest has so many pieces."""
    _, change_pending, _, *further = tail.numpy().tolist()
    return StepResult(
        logs,
        change_pending > 0,
        skipped=skipped,
        digest=example_ids.digest_of_sums(further[:pieces]),
        seconds=further[pieces:],
    )


def now(clock: Callable[[], float] = time.perf_counter) -> tf.Tensor:
    """Seconds of a steady clock, float64; `tf.timestamp` refuses with op determinism."""
    return tf.ensure_shape(tf.numpy_function(clock, [], tf.float64), [])
