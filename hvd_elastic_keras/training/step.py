"""The atomic step: micro-batches, one grouped allreduce, then all assignments at once.

The user's unmodified `train_step` runs once per micro-batch inside `keras.StatelessScope`, with
the optimizers' `apply` replaced by a recorder, so that it assigns nothing (`MicroBatch`). What it
would have changed is summed over the worker's micro-batches:

* gradients, weighted with examples of the micro-batch / examples of the global batch;
* differences of metric states (sums add up);
* differences of batch-norm statistics and the like, weighted as the gradients;
* values in its logs that no metric holds, weighted as the gradients.

One `hvd.grouped_allreduce(op=Sum)` adds these over the workers, together with the example count
and the flags "membership change pending" and "stop wanted". Only after all its outputs are there
is anything assigned: a worker that fails before stands exactly at its last finished step.

Random numbers: each micro-batch sees its seed generators at
`fold_in(initial state, step * 2**20 + index)`, which makes dropout independent of who computes
it; the states themselves never change.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

from hvd_elastic_keras import ledger
from hvd_elastic_keras.data.pipeline import LocalBatch
from hvd_elastic_keras.data.structure import Layout, Structure
from hvd_elastic_keras.ledger import PIECES
from hvd_elastic_keras.training.micro_batch import Accumulated, MicroBatch, Tensors
from hvd_elastic_keras.training.scaled_rate import scaled
from hvd_elastic_keras.training.variables import ModelVariables, optimizers_of, unwrapped
from hvd_elastic_keras.training.world import World

MAX_MICRO_BATCHES = 2**20
"""Of one step; keeps the numbers of micro-batches of different steps apart."""
COUNT_AND_FLAGS = 3
"""Entries at the end of the reduced vector: examples, "membership change pending", "stop wanted";
after them the digest of the examples' ids and the workers' speeds, where they are wanted."""
STOP_MESSAGE = "elastic: a callback wants to stop, so nobody takes this step"

Logs = dict[str, Any]
"""Names to floats, or to arrays for metrics that have several values."""


@dataclasses.dataclass(frozen=True)
class StepResult:
    """The outcome of a step, the same on every worker.

    Attributes:
      logs: as `train_step` returns them, over the whole global batch.
      change_pending: whether any worker knows of a membership change.
      stopped: whether some worker said `stop`; nothing has changed then.
      seconds: by rank, seconds per example of its micro-batches, if the step measures them.
      digest: of the ids of all examples that the workers have used, if the step is audited.
    """

    logs: Logs
    change_pending: bool = False
    stopped: bool = False
    seconds: Sequence[float] = ()
    digest: int = 0


@dataclasses.dataclass(frozen=True)
class StepOptions:
    """What a step does beyond its work.

    Attributes:
      audited: whether the workers agree on which examples they have used.
      measured_workers: so many workers, at most, tell each other their speed; 0 turns it off.
      scales_rate: whether the learning rate is multiplied by that of `World`.
    """

    audited: bool = False
    measured_workers: int = 0
    scales_rate: bool = False


PLAIN = StepOptions()


@dataclasses.dataclass(frozen=True)
class Part:
    """One worker's part of one step, in tensors.

    Attributes:
      data: leaves of the batch, [examples, …] each.
      offsets: shape [micro-batches + 1], where each begins and the last one ends.
      first_index: number of its first micro-batch, different for all steps.
      num_examples: of the whole step, float32.
      began: when the first micro-batch began, in seconds, float64; only where speeds are measured.
      digest: shape [0], or [PIECES] where steps are audited.
    """

    data: Tensors
    offsets: tf.Tensor
    first_index: tf.Tensor
    num_examples: tf.Tensor
    digest: tf.Tensor
    began: tf.Tensor | None = None

    @property
    def count(self) -> tf.Tensor:
        """Number of micro-batches."""
        return tf.size(self.offsets) - 1


class AtomicStep:
    """A compiled step of a model: `train` or, without an optimizer, `evaluate`.

    Args:
      model: built and compiled. With `run_eagerly` the step runs eagerly; it is atomic, too.
      variables: all state of the model.
      batch_spec: specs of a batch of any size; None where batches have nothing.
      world: what the graph has to know of the present round.
      train: whether to compute gradients and apply the optimizer.
      unshared: metrics that do not add up. In training they do not occur in the logs; in
        evaluation every worker must be given all micro-batches.
      options: what it does beyond that.
    """

    def __init__(
        self,
        model: keras.Model,
        variables: ModelVariables,
        batch_spec: Structure,
        world: World,
        *,
        train: bool,
        unshared: Sequence[keras.Metric] = (),
        options: StepOptions = PLAIN,
    ) -> None:
        self.model = model
        self._options = options
        self._pieces = PIECES if options.audited else 0
        self._counts_once = train or not unshared
        self._world = world
        self._name = "elastic_train_step" if train else "elastic_evaluation_step"
        self._layout = Layout(batch_spec)
        # Where every worker computes everything there is nothing to add up.
        metrics = {"left_out": unshared} if train else {"whole": model.metrics if unshared else ()}
        self.micro_batch = MicroBatch(model, variables, self._layout, train=train, **metrics)
        self._function = self._step
        if not model.run_eagerly:
            self._function = tf.function(
                self._step,
                input_signature=[self._layout.flat_spec, tf.TensorSpec([None], tf.int64)],
                autograph=False,
            )

    def __call__(self, batch: LocalBatch, step: int, stop: bool = False) -> StepResult:
        """Takes the step with everybody.

        Args:
          batch: this worker's part.
          step: number of the step since the beginning; random numbers follow from it.
          stop: whether nobody is to take this step: this worker's callbacks want to end the
            training before it, or its data have ended.

        Returns:
          What all workers agree on.

        Raises:
          tf.errors.OpError: the collective failed; nothing has been assigned.
        """
        part = batch.part
        first = step * MAX_MICRO_BATCHES + part.first_micro_batch
        # One array: each argument of a graph costs tens of microseconds.
        digest = ledger.pieces(ledger.digest(np.asarray(batch.ids))) if self._pieces else ()
        head = (first, part.num_examples_of_step, stop, *digest)
        numbers = np.array([*head, *part.offsets], np.int64)
        try:
            logs, change_pending, more = self._function(self._layout.flatten(batch.data), numbers)
        except tf.errors.InvalidArgumentError as error:
            if STOP_MESSAGE in str(error):
                return StepResult({}, stopped=True)
            raise
        further = more.numpy().tolist()
        return StepResult(
            python_logs(logs),
            bool(change_pending.numpy() > 0),
            digest=ledger.digest_of_sums(further[: self._pieces]),
            seconds=further[self._pieces :],
        )

    def _step(
        self, data: Tensors, numbers: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor, tf.Tensor]:
        first_index, offsets = numbers[0], tf.cast(numbers[3 + self._pieces :], tf.int32)
        num_examples, stop = (tf.cast(numbers[i], tf.float32) for i in (1, 2))
        digest = tf.ensure_shape(numbers[3 : 3 + self._pieces], [self._pieces])
        part = self._start_clock(
            Part(data, offsets, first_index, num_examples, tf.cast(digest, tf.float32))
        )
        total, tail = self._sum_of_all(part, stop)
        count, change_pending, stop = tf.unstack(tail[:COUNT_AND_FLAGS])
        # On all workers alike: the wish of one ends the training before this step.
        checks = [tf.debugging.assert_equal(stop, 0.0, message=STOP_MESSAGE)]
        if self._counts_once:
            text = "The workers did not compute each example of the global batch exactly once."
            # After the other one: whose data have ended takes part in a stop with no examples.
            with tf.control_dependencies([check for check in checks if check is not None]):
                checks.append(tf.debugging.assert_equal(count, num_examples, message=text))
        checks = [check for check in checks if check is not None]  # None when run eagerly
        # Everything that assigns is inside: the optimizer also changes variables that do not
        # depend on gradients (its iterations, weight decay).
        with tf.control_dependencies([*total.tensors, tail, *checks]), self._scaled_rate():
            averages = self.micro_batch.assign(total.copy())
        return self.micro_batch.logs(averages), change_pending, tail[COUNT_AND_FLAGS:]

    def _scaled_rate(self) -> contextlib.AbstractContextManager[None]:
        if not self._options.scales_rate:
            return contextlib.nullcontext()
        return scaled(optimizers_of(self.model), self._world.learning_rate_scale)

    def _start_clock(self, part: Part) -> Part:
        if not self._options.measured_workers:
            return part
        with tf.control_dependencies(part.data):
            began = _now()
        with tf.control_dependencies([began]):  # every micro-batch needs the offsets
            offsets = tf.identity(part.offsets)
        return dataclasses.replace(part, offsets=offsets, began=began)

    def _sum_of_all(self, part: Part, stop: tf.Tensor) -> tuple[Accumulated, tf.Tensor]:
        """The sums over all micro-batches of the step, and those of `_tail` over all workers."""
        mine = self._sum_over_micro_batches(part)
        tail = tf.cast(self._tail(mine.tensors, part, stop), mine.staged.dtype)
        *gradients, staged = self._sum_over_workers(
            [*mine.gradients, tf.concat([mine.staged, tail], 0)]
        )
        length = COUNT_AND_FLAGS + self._pieces + self._options.measured_workers
        tail = tf.cast(staged[-length:], tf.float32)
        # Where every worker has computed everything, its own sum is the whole one.
        sums = staged[:-length] if self._counts_once else mine.staged
        return Accumulated(gradients, sums, mine.whole), tail

    def _tail(self, computed: Tensors, part: Part, stop: tf.Tensor) -> tf.Tensor:
        """The count of examples, the flags, the digest and, in its place, this worker's speed.

        Shape [COUNT_AND_FLAGS + digest + measured workers].
        """
        with tf.control_dependencies(computed):  # as late as possible
            change_pending = self._world.change_pending.read_value()
        count = tf.cast(part.offsets[-1], tf.float32)
        tail = tf.concat([[count, change_pending, stop], part.digest], 0)
        if part.began is None:
            return tail
        with tf.control_dependencies(computed):
            seconds = tf.cast(_now() - part.began, tf.float32)
        place = tf.one_hot(self._world.rank.read_value(), self._options.measured_workers)
        return tf.concat([tail, place * tf.math.divide_no_nan(seconds, count)], 0)

    def _sum_over_workers(self, tensors: Tensors) -> Tensors:
        """The one collective of a step. Alone there is nothing to wait for: it takes 0.6 ms."""

        def allreduce() -> Tensors:
            return list(
                hvd.grouped_allreduce(tensors, op=hvd.Sum, name=self._name, ignore_name_scope=True)
            )

        return list(tf.cond(self._world.shared.read_value(), allreduce, lambda: list(tensors)))

    def _sum_over_micro_batches(self, part: Part) -> Accumulated:
        micro_batch = self.micro_batch

        def body(i: Any, *sums: tf.Tensor) -> tuple[tf.Tensor, ...]:
            whole = micro_batch.whole_of(sums)
            results = self._results(i, part, whole)
            return (i + 1, *micro_batch.add(sums, results))

        sums = micro_batch.zeros()
        if self.model.run_eagerly:
            for i in range(int(part.count)):
                _, *sums = body(i, *sums)
        else:
            _, *sums = tf.while_loop(
                lambda i, *_: i < part.count,
                body,
                [tf.constant(0), *sums],
                parallel_iterations=1,
            )
        return micro_batch.accumulated(sums)

    def _results(self, i: Any, part: Part, whole: Tensors) -> Tensors:
        """What this worker's micro-batch `i` adds to the step."""
        low, high = part.offsets[i], part.offsets[i + 1]
        weight = tf.cast(high - low, tf.float32) / part.num_examples
        index = part.first_index + tf.cast(i, tf.int64)
        results = self.micro_batch([t[low:high] for t in part.data], index, weight, whole)
        return self.micro_batch.weighted(results, weight)


def _now() -> tf.Tensor:
    """Seconds of a steady clock, float64; `tf.timestamp` refuses with op determinism."""
    return tf.ensure_shape(tf.numpy_function(time.perf_counter, [], tf.float64), [])


def python_logs(logs: dict[str, Any]) -> Logs:
    """Logs as callbacks see them: sorted by name, numbers as floats."""
    result: Logs = {}
    for name, value in sorted(logs.items()):
        if isinstance(value, dict):
            result.update(python_logs(value))
        else:
            array = np.asarray(unwrapped(value))
            result[name] = float(array) if array.ndim == 0 else array
    return result
