"""The result of a step, and the tail: numbers that travel with the last collective of the step.

`StepResult` holds the outcome, and the logs as callbacks see them. From the sum of the tails,
workers learn whether all of them take the step, and with which examples.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_elastic_keras.data.plan import example_ids
from hvd_elastic_keras.data.plan.example_ids import PIECES
from hvd_elastic_keras.keras_internals.model_variables import unwrapped
from hvd_elastic_keras.step.step_options import StepOptions
from hvd_elastic_keras.step.worker_rows import Place
from hvd_elastic_keras.step.world import World

Logs = dict[str, Any]
"""Names to floats, or to arrays for metrics that have several values."""

COUNT_AND_FLAGS = 3
"""Numbers at the beginning of the tail: examples, "membership change pending", "stop wanted". The
digest of the examples' ids and the workers' speeds follow, if the options ask for them."""
STOP_MESSAGE = "elastic: a worker asked to stop, so no worker takes this step"
SKIP_MESSAGE = "elastic: a value is not finite, so no worker takes this step"


@dataclasses.dataclass(frozen=True)
class StepResult:
    """The outcome of a step, the same on every worker.

    Attributes:
      logs: as `train_step` returns them, over the whole global batch.
      change_pending: whether any worker knows of a membership change.
      stopped: whether some worker asked to stop; then nothing has changed.
      skipped: whether the step was skipped because a value was not finite; then nothing has
        changed, and there are no logs.
      seconds: by rank, seconds per example until the worker's part was done; empty if the step does
        not measure them.
      digest: digest of the ids of all examples that the workers have used, if the step is audited.
    """

    logs: Logs
    change_pending: bool = False
    stopped: bool = False
    skipped: bool = False
    seconds: Sequence[float] = ()
    digest: int = 0


def python_logs(logs: dict[str, Any]) -> Logs:
    """Returns logs as callbacks see them: sorted by name, numbers as floats."""
    result: Logs = {}
    for name, value in sorted(logs.items()):
        if isinstance(value, dict):
            result.update(python_logs(value))
        else:
            array = np.asarray(unwrapped(value))
            result[name] = float(array) if array.ndim == 0 else array
    return result


class StepTail:
    """The count of examples, the flags, the digest and the workers' speeds.

    Args:
      world: facts about the present round, for graphs.
      options: which of these parts are wanted.
    """

    def __init__(self, world: World, options: StepOptions) -> None:
        self._world = world
        self._options = options
        self.pieces = PIECES if options.audited else 0
        """Number of pieces of the digest of ids; 0 if the step is not audited."""
        self.clock = world.clock if options.timed else None
        """Times the parts of some steps; None if steps are not timed."""

    @property
    def spec(self) -> tf.TensorSpec:
        """The spec of a tail; the sum of all tails has the same."""
        length = COUNT_AND_FLAGS + self.pieces + self._options.measured_workers
        return tf.TensorSpec([length], tf.float32)

    def began(self) -> tf.Tensor | None:
        """Returns when this worker could have begun its part, in seconds; None if not wanted."""
        return now(self._world.part_began) if self._options.measured_workers else None

    def of(self, before: Iterable[Any], place: Place, began: Any) -> tf.Tensor:
        """Returns the count of examples, the flags, the digest and this worker's speed.

        The speed, in seconds per example, stands at the place of this worker's rank.

        Args:
          before: tensors that have to be computed first.
          began: the result of `began()`.

        Returns:
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
        """Returns checks that all workers take the step and computed each row exactly once."""
        count, _, stop = tf.unstack(tail[:COUNT_AND_FLAGS])
        # This raises on all workers alike: if one wants to stop, training ends before this step.
        checks = there([tf.debugging.assert_equal(stop, 0.0, message=STOP_MESSAGE)])
        text = "The workers did not compute each example of the global batch exactly once."
        # After the stop check: a worker whose data have ended takes part in a stop without
        # examples.
        with tf.control_dependencies(checks):
            total = tf.cast(place.total, tf.float32)
            checks += there([tf.debugging.assert_equal(count, total, message=text)])
        return checks


def there(operations: Iterable[Any]) -> list[Any]:
    """Returns the operations without None, which a check returns when it runs eagerly."""
    return [o for o in operations if o is not None]


def result_of(
    logs: Logs, tail: tf.Tensor | tf.Variable, pieces: int, *, skipped: bool = False
) -> StepResult:
    """Returns the result on which the workers agree, from the sum of their tails.

    Args:
      tail: the sum of the tails.
      pieces: number of pieces of the digest of ids.
    """
    _, change_pending, _, *further = tail.numpy().tolist()
    return StepResult(
        logs,
        change_pending > 0,
        skipped=skipped,
        digest=example_ids.digest_of_sums(further[:pieces]),
        seconds=further[pieces:],
    )


def now(clock: Callable[[], float] = time.perf_counter) -> tf.Tensor:
    """Returns seconds of a steady clock, float64. `tf.timestamp` fails with op determinism."""
    return tf.ensure_shape(tf.numpy_function(clock, [], tf.float64), [])
