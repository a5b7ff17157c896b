"""The atomic step: micro-batches, one grouped allreduce, then all assignments at once.

The user's unmodified `train_step` runs once per micro-batch inside `keras.StatelessScope`, with
the optimizers' `apply` replaced by a recorder, so that it assigns nothing (`MicroBatch`). What it
would have changed is summed over the worker's micro-batches:

* gradients, weighted with examples of the micro-batch / examples of the global batch;
* differences of metric states (sums add up);
* differences of batch-norm statistics and the like, weighted as the gradients;
* values in its logs that no metric holds, weighted as the gradients.

One `hvd.grouped_allreduce(op=Sum)` adds these over the workers, together with the example count
and the flags "membership change pending" and "stop wanted"; large gradients travel in several, of
which the first begin while the rest is computed (`reduction.py`). Only after all outputs are there
is anything assigned: a worker that fails before stands exactly at its last finished step.

Random numbers: seed generators stand, in every micro-batch of a step, where they stand in plain
`fit`, and advance once per step. Of each draw for the whole batch a micro-batch takes its rows
(`random_draws.py`), so that dropout depends neither on who computes it nor on the cut.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvd_elastic_keras.data.examples.structure import Layout
from hvd_elastic_keras.data.input.interfaces import LocalBatch
from hvd_elastic_keras.data.plan import example_ids
from hvd_elastic_keras.data.plan.example_ids import PIECES
from hvd_elastic_keras.keras_internals.held_objects import optimizers_of
from hvd_elastic_keras.keras_internals.scaled_rate import scaled
from hvd_elastic_keras.step.direct_call import directly
from hvd_elastic_keras.step.late_step import Arrive, LateStep, Taken
from hvd_elastic_keras.step.micro_batches.micro_batch import MicroBatch
from hvd_elastic_keras.step.micro_batches.rows import Rows
from hvd_elastic_keras.step.micro_batches.running_sums import RunningSums
from hvd_elastic_keras.step.micro_batches.traced import Accumulated, Tensors
from hvd_elastic_keras.step.reduction import Reduction, parts_of
from hvd_elastic_keras.step.share_tensors import ShareTensors
from hvd_elastic_keras.step.step_options import PLAIN, StepOptions
from hvd_elastic_keras.step.step_result import StepResult, python_logs
from hvd_elastic_keras.step.step_tail import (
    COUNT_AND_FLAGS,
    SKIP_MESSAGE,
    STOP_MESSAGE,
    now,
    result_of,
)
from hvd_elastic_keras.step.together_limit import TogetherLimit
from hvd_elastic_keras.step.world import World


class AtomicStep:
    """A compiled step of a model: `train` or, without an optimizer, `evaluate`.

    Args:
      model: built and compiled. With `run_eagerly` the step runs eagerly; it is atomic, too.
      micro_batch: computes one, of batches of the form `layout`.
      world: what the graph has to know of the present round.
      train: whether to compute gradients and apply the optimizer.
      shared: whether workers share a step. If not, each computes all of it.
      options: what it does beyond that.
    """

    def __init__(
        self,
        model: keras.Model,
        micro_batch: MicroBatch,
        layout: Layout,
        world: World,
        *,
        train: bool,
        shared: bool = True,
        options: StepOptions = PLAIN,
    ) -> None:
        self.model = model
        self.micro_batch = micro_batch
        self._options = options
        self._pieces = PIECES if options.audited else 0
        self._shared = shared
        self._world = world
        self._clock = world.clock if options.timed else None
        self._name = "elastic_train_step" if train else "elastic_evaluation_step"
        self._reduction = Reduction(self._name, options.compression)
        self._layout = layout
        self._limit = TogetherLimit(options.together)
        length = COUNT_AND_FLAGS + self._pieces + options.measured_workers
        self._newest_tail = tf.Variable(tf.zeros([length])) if options.skips_nonfinite else None
        """That of a step that raises has no other way out."""
        self._take: Callable[[Tensors, tf.Tensor], Taken] = self._step
        self._late: LateStep | None = None
        if not model.run_eagerly:
            function = tf.function(self._step, input_signature=self._signature, autograph=False)
            self._take = directly(function)

    @property
    def _signature(self) -> list[Any]:
        return [self._layout.flat_spec, tf.TensorSpec([None], tf.int64)]

    def may_be_late(self) -> bool:
        """Lets it be taken before the state has come. Returns whether that is possible."""
        if self._late is None and not (self.model.run_eagerly or self.calls_python):
            self._late = LateStep(self, self._signature)
        return self._late is not None

    @property
    def calls_python(self) -> bool:
        """Whether Python code of the user's runs in every step."""
        return self.micro_batch.calls_python

    def __call__(
        self, batch: LocalBatch, step: int, stop: bool = False, arrive: Arrive | None = None
    ) -> StepResult:
        """Takes the step with everybody.

        Args:
          batch: this worker's part.
          step: number of the step since the beginning; random numbers follow from it.
          stop: whether nobody is to take this step: this worker's callbacks want to end the
            training before it, or its data have ended.
          arrive: waits for the state of this worker, which has none yet and no part in the batch.

        Returns:
          What all workers agree on.

        Raises:
          tf.errors.OpError: the collective failed; nothing has been assigned.
          CollectiveFailedError: memory ran out, see `TogetherLimit`; nothing has been assigned.
        """
        part = batch.part
        # One array: each argument of a graph costs tens of microseconds.
        digest = (
            example_ids.pieces(example_ids.digest(np.asarray(batch.ids))) if self._pieces else ()
        )
        place = (step, part.first_micro_batch, part.first_example)
        head = (*place, part.num_examples_of_step, stop, *digest)
        numbers = np.array([*head, *part.offsets], np.int64)
        take = self._take if arrive is None or self._late is None else self._late.after(arrive)
        try:
            logs, tail = self._limit.run(
                lambda: take(self._layout.flatten(batch.data), tf.constant(numbers)),
                len(part.offsets) - 1,
                computing=lambda: int(self._world.computed.numpy()) != step,
                repeatable=lambda: not self._overlaps and not self.calls_python,
            )
        except tf.errors.InvalidArgumentError as error:
            if STOP_MESSAGE in str(error):
                return StepResult({}, stopped=True)
            if self._newest_tail is not None and SKIP_MESSAGE in str(error):
                return result_of({}, self._newest_tail, self._pieces, skipped=True)
            raise
        return result_of(python_logs(logs), tail, self._pieces)

    def warm_up_late(self, batch: LocalBatch) -> None:
        """Leaves warm what a step needs that is taken before the state has come."""
        self(batch, 0, stop=True, arrive=lambda: None)
        if self._late is not None:
            self._late.warm_up_rest()

    @property
    def _overlaps(self) -> bool:
        """Whether gradients are sent while the rest is computed."""
        return len(parts_of(self.micro_batch.early_gradients)) > 1

    def _step(self, data: Tensors, numbers: tf.Tensor) -> Taken:
        total, tail, before = self.total(data, numbers)
        # Everything that assigns is inside: the optimizer also changes variables that do not
        # depend on gradients (its iterations, weight decay). One operation stands for all that
        # comes before, or each of some thousand would wait for each of some hundred.
        with tf.control_dependencies([tf.group(*before)]):
            averages = self.apply(total)
        return self.micro_batch.logs(averages), tail

    def apply(self, total: Accumulated) -> Tensors:
        """Lets the sums over all workers take effect; see `MicroBatch.assign`."""
        with self._scaled_rate():
            return self.micro_batch.assign(total.copy())

    def total(self, data: Tensors, numbers: tf.Tensor) -> tuple[Accumulated, tf.Tensor, list[Any]]:
        """The sums over all workers, `_tail`, and what has to be done before they take effect."""
        step, first_index, first_example = (numbers[i] for i in range(3))
        num_examples, stop = (tf.cast(numbers[i], tf.float32) for i in (3, 4))
        digest = numbers[5 : 5 + self._pieces]
        offsets = tf.cast(numbers[5 + self._pieces :], tf.int32)
        digest = tf.cast(tf.ensure_shape(digest, [self._pieces]), tf.float32)
        place = (step, first_index, first_example)
        part = self._start_clock(ShareTensors(data, offsets, *place, num_examples, digest))
        total, tail = self._sum_of_all(part, stop)
        count, _, stop = tf.unstack(tail[:COUNT_AND_FLAGS])
        # On all workers alike: the wish of one ends the training before this step.
        checks = [tf.debugging.assert_equal(stop, 0.0, message=STOP_MESSAGE)]
        if self._shared:
            text = "The workers did not compute each example of the global batch exactly once."
            # After the other one: whose data have ended takes part in a stop with no examples.
            with tf.control_dependencies([check for check in checks if check is not None]):
                checks.append(tf.debugging.assert_equal(count, num_examples, message=text))
        if self._newest_tail is not None:
            with tf.control_dependencies([check for check in checks if check is not None]):
                checks.append(self._check_finite(total, self._newest_tail.assign(tail)))
        checks = [check for check in checks if check is not None]  # None when run eagerly
        reduced = [*total.tensors, tail]
        with tf.control_dependencies(reduced):
            noted = [self._clock.summed()] if self._clock else []
        return total, tail, [*reduced, *checks, *noted]

    def _check_finite(self, total: Accumulated, before: tf.Tensor) -> tf.Operation | None:
        """Raises for all workers alike: all have the same sums."""
        scales_loss = any(
            isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
            for optimizer in optimizers_of(self.model)
        )
        # Scaled gradients may overflow: that optimizer then takes no step, and scales less.
        looked_at = [total.staged] if scales_loss else [*total.gradients, total.staged]
        finite = [tf.reduce_all(tf.math.is_finite(t)) for t in looked_at]
        with tf.control_dependencies([before]):
            return tf.debugging.assert_equal(
                tf.reduce_all(tf.stack(finite)), True, message=SKIP_MESSAGE
            )

    def _scaled_rate(self) -> contextlib.AbstractContextManager[None]:
        if not self._options.scales_rate:
            return contextlib.nullcontext()
        return scaled(optimizers_of(self.model), self._world.learning_rate_scale)

    def _start_clock(self, part: ShareTensors) -> ShareTensors:
        if not self._options.measured_workers:
            return part
        began = now(self._world.part_began)
        with tf.control_dependencies([began]):  # every micro-batch needs the offsets
            offsets = tf.identity(part.offsets)
        return dataclasses.replace(part, offsets=offsets, began=began)

    def _sum_of_all(self, part: ShareTensors, stop: tf.Tensor) -> tuple[Accumulated, tf.Tensor]:
        """The sums over all micro-batches of the step, and those of `_tail` over all workers."""
        has_others = self._world.has_others.read_value()
        # All micro-batches need the offsets. Without this, busy threads would read it after the
        # backward pass, and nothing could be sent before.
        with tf.control_dependencies([has_others]):
            part = dataclasses.replace(part, offsets=tf.identity(part.offsets))
        mine = self._sum_over_micro_batches(part)
        tail = tf.cast(self._tail(mine.tensors, part, stop), mine.staged.dtype)
        gradients, staged = self._reduction(
            mine.gradients,
            tf.concat([mine.staged, tail], 0),
            has_others,
        )
        length = COUNT_AND_FLAGS + self._pieces + self._options.measured_workers
        tail = tf.cast(staged[-length:], tf.float32)
        # Where every worker has computed everything, its own sum is the whole one.
        sums = staged[:-length] if self._shared else mine.staged
        return Accumulated(gradients, sums, mine.whole), tail

    def _tail(self, computed: Tensors, part: ShareTensors, stop: tf.Tensor) -> tf.Tensor:
        """The count of examples, the flags, the digest and, in its place, this worker's speed.

        Shape [COUNT_AND_FLAGS + digest + measured workers].
        """
        with tf.control_dependencies(computed):  # as late as possible
            change_pending = self._world.change_pending.read_value()
            done = [self._world.computed.assign(part.step, read_value=False)]
            if self._clock:
                done.append(self._clock.computed())
        with tf.control_dependencies([d for d in done if d is not None]):  # None when run eagerly
            count = tf.cast(part.offsets[-1], tf.float32)
        tail = tf.concat([[count, change_pending, stop], part.digest], 0)
        if part.began is None:
            return tail
        with tf.control_dependencies(computed):
            seconds = tf.cast(now() - part.began, tf.float32)
        place = tf.one_hot(self._world.rank.read_value(), self._options.measured_workers)
        return tf.concat([tail, place * tf.math.divide_no_nan(seconds, count)], 0)

    def _sum_over_micro_batches(self, part: ShareTensors) -> Accumulated:
        micro_batch, overlaps = self.micro_batch, self._overlaps
        running = RunningSums(micro_batch.summed, part.count)

        def body(i: Any, sums: Tensors, whole: Tensors) -> tuple[Any, Tensors, Tensors]:
            together = self._together(i, part)
            # One after the other, though the end of the loop is known before the last one is done.
            with tf.control_dependencies(sums if overlaps else ()):
                first = tf.identity(i)
            results = micro_batch.accumulated(self._results(first, part, whole, together))
            added = running.add(i, sums, [*results.gradients, results.staged])
            return i + together, added, results.whole

        sums, whole = running.start(), micro_batch.whole_of(())
        if self.model.run_eagerly:
            for i in range(int(part.count)):
                _, sums, whole = body(i, sums, whole)
        else:
            _, sums, whole = tf.while_loop(
                lambda i, *_: i < part.count,
                body,
                (tf.constant(0), sums, whole),
                shape_invariants=(tf.TensorShape([]), running.shapes(), [t.shape for t in whole]),
                # With 2, each sum leaves the loop by itself, as soon as it is there.
                parallel_iterations=2 if overlaps else 1,
            )
        return micro_batch.accumulated([*running.end(sums), *whole])

    def _together(self, i: Any, part: ShareTensors) -> Any:
        """How many micro-batches are computed in one pass, from `i` on."""
        if self._limit.is_one:
            return 1
        count = part.count - i
        if self.micro_batch.notes.across:  # batch norm: those of the same size
            sizes = part.offsets[i + 1 :] - part.offsets[i:-1]
            same = tf.cast(tf.equal(sizes, sizes[0]), tf.int32)
            count = tf.reduce_sum(tf.math.cumprod(same))
        return tf.minimum(count, self._limit.in_graph())

    def _results(self, i: Any, part: ShareTensors, whole: Tensors, together: Any = 1) -> Tensors:
        """What this worker's micro-batches from `i` on add to the step."""
        low, high = part.offsets[i], part.offsets[i + together]
        rows = Rows(
            step=part.step,
            index=part.first_index + tf.cast(i, tf.int64),
            low=part.first_example + tf.cast(low, tf.int64),
            size=tf.cast(high - low, tf.int64),
            total=tf.cast(part.num_examples, tf.int64),
            together=together,
        )
        results = self.micro_batch([t[low:high] for t in part.data], rows, whole)
        return self.micro_batch.with_means_weighted(results, rows.weight)
