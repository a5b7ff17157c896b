"""All workers of a partitioned step in one process: a thread each, whose collectives meet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_elastic_keras.keras_internals.emission import emit
from hvd_elastic_keras.step.partition.captured_step import CapturedStep
from hvd_elastic_keras.step.partition.execution import OfRows, Part, PartialStep, Versions
from hvd_elastic_keras.step.partition.moments import Moments
from hvd_elastic_keras.step.partition.operations.states import (
    CONJUNCT,
    PARTIAL,
    REPLICATED,
    State,
    is_sharded,
)
from hvd_elastic_keras.step.partition.plan import Analysis, PlannedOperation

TIME_LIMIT_S = 60


class Meeting:
    """Collectives of threads, that are in their order and check that all make the same calls."""

    def __init__(self, num_workers: int) -> None:
        self._barrier = threading.Barrier(num_workers, timeout=TIME_LIMIT_S)
        self._given: list[Any] = [None] * num_workers

    def exchanged(self, worker: int, call: tuple[str, str], value: Any) -> list[Any]:
        """What all workers have given."""
        self._given[worker] = (call, value)
        self._barrier.wait()
        given = list(self._given)
        self._barrier.wait()
        calls = {one for one, _ in given}
        assert len(calls) == 1, f"workers make different calls: {calls}"
        return [value for _, value in given]

    def abort(self) -> None:
        """Lets nobody wait for a worker that has failed."""
        self._barrier.abort()


class ThreadCollectives:
    """The collectives of one thread."""

    def __init__(self, meeting: Meeting, worker: int) -> None:
        self._meeting, self._worker = meeting, worker

    def summed(self, tensors: list[tf.Tensor], name: str) -> list[tf.Tensor]:
        """Added in the order of the workers."""
        given = self._meeting.exchanged(self._worker, ("sum", name), tensors)
        return [tf.add_n(list(each)) for each in zip(*given, strict=True)]

    def gathered(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """In the order of the workers."""
        return tf.concat(self._meeting.exchanged(self._worker, ("rows", name), tensor), 0)

    def extreme(self, tensor: tf.Tensor, kind: str, name: str) -> tf.Tensor:
        """Of all workers."""
        reduce = {
            "Max": tf.reduce_max,
            "Min": tf.reduce_min,
            "All": tf.reduce_all,
            "Any": tf.reduce_any,
        }[kind]
        return reduce(tf.stack(self._meeting.exchanged(self._worker, (kind, name), tensor)), 0)


class Verified(PartialStep):
    """Computes each operation of whole inputs as well: what the workers have must come to the same.

    So a wrong rule is found at the operation where it is wrong.
    """

    meeting: Meeting
    worker: int
    has_rows: bool

    def _computed(self, planned: PlannedOperation, inputs: list[Any]) -> list[Any]:
        outputs = super()._computed(planned, inputs)
        op, decision = planned.op, planned.decision
        tensors = [*op.inputs, *op.outputs]
        if planned.bodies or any(t.dtype in (tf.variant, tf.resource) for t in tensors):
            return outputs
        if {*decision.want, *decision.out} <= {REPLICATED}:
            return outputs
        whole = [self._whole(op, s, v) for s, v in zip(decision.want, inputs, strict=True)]
        found = [self._whole(op, s, v) for s, v in zip(decision.out, outputs, strict=True)]
        for one, other in zip(emit(op, whole), found, strict=True):
            assert_close(other, one, f"{op.type} {op.name}: {decision}")
        return outputs

    def _find_moments(self, moments: Sequence[Moments], there: dict[str, Versions]) -> None:
        super()._find_moments(moments, there)
        for m in moments:
            rows = m.mean.inputs[0]
            whole = self._whole(m.mean, m.state, there[rows.name][m.state])
            for tensor, expected in zip(
                (m.mean.outputs[0], m.variance.outputs[0]),
                tf.nn.moments(whole, m.axes),
                strict=True,
            ):
                found = there[tensor.name][REPLICATED]
                what = f"{m.mean.name} with {m.variance.name}"
                assert_close(found, tf.reshape(expected, found.shape), what)

    def _whole(self, op: Any, state: State, value: Any) -> Any:
        call = (f"verify {state}", op.name)
        if state == CONJUNCT:
            value = tf.logical_or(value, not self.has_rows)
            return tf.reduce_all(tf.stack(self.meeting.exchanged(self.worker, call, value)), 0)
        if not self.has_rows and state != REPLICATED:
            at = tf.one_hot(state.at_axis, len(value.shape), 0, -1, dtype=tf.int32)
            value = tf.slice(value, tf.zeros_like(at), at) if is_sharded(state) else value * 0
        values = self.meeting.exchanged(self.worker, call, value)
        if is_sharded(state):
            return tf.concat(values, state.at_axis)
        return sum(values[1:], values[0]) if state == PARTIAL else values[0]


def assert_close(
    found: Any, expected: Any, what: str, exact: float | None = None, least: float = 1.0
) -> None:
    """Of two tensors: the same to rounding.

    Args:
      exact: relative to the largest number; None: what the type allows.
      least: the largest number is taken for at least so large.
    """
    found, expected = np.asarray(found), np.asarray(expected)
    if expected.dtype.kind not in "fc":
        np.testing.assert_array_equal(found, expected, err_msg=what)
        return
    if exact is None:
        exact = 1e-3 if expected.dtype == np.float16 else 1e-4 if expected.itemsize == 4 else 1e-9
    scale = max(least, float(np.nanmax(np.abs(expected), initial=0.0)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=exact * scale, err_msg=what)


def rows_of(tensor: Any, low: int, high: int) -> Any:
    """Entries [low, high) of the first axis; all of what has no rows."""
    if high == 0:
        return tf.identity(tensor)
    if isinstance(tensor, tf.SparseTensor):
        sizes = tensor.dense_shape.numpy()[1:]
        return tf.sparse.slice(tensor, [low, *(0 for _ in sizes)], [high - low, *sizes])
    return (
        tensor[low:high] if isinstance(tensor, tf.RaggedTensor) else tf.constant(tensor[low:high])
    )


def take_step(
    captured: CapturedStep,
    analysis: Analysis,
    batch: Sequence[Any],
    shares: Sequence[int],
    *,
    verify: bool = False,
    step_number: int = 0,
) -> tuple[list[Any], dict[str, Any]]:
    """One step of as many workers as there are shares of the rows.

    Args:
      verify: whether each decision is checked by itself.
      step_number: as `PartialStep.compute` takes it.

    Returns:
      The outputs and the new values of the variables, which are the same on all workers.
    """
    meeting = Meeting(len(shares))
    bounds = np.cumsum([0, *shares])

    def worker(number: int) -> tuple[list[Any], dict[str, Any]]:
        low, high = bounds[number], bounds[number + 1]
        has_rows = high > low
        collectives = OfRows(ThreadCollectives(meeting, number), tf.constant(has_rows))
        if not has_rows:  # any row will do
            low, high = 0, 1
        numbers = (low, high - low, bounds[-1])
        is_first = number == next(i for i, share in enumerate(shares) if share)
        flags = tf.constant(is_first), tf.constant(has_rows)
        part = Part(*(tf.constant(n, tf.int32) for n in numbers), *flags)
        step = (Verified if verify else PartialStep)(captured, analysis, part, collectives)
        if isinstance(step, Verified):
            step.meeting, step.worker, step.has_rows = meeting, number, has_rows
        try:
            leaves = zip(batch, captured.leaves, strict=True)
            rows = [rows_of(b, low * leaf.per_row, high * leaf.per_row) for b, leaf in leaves]
            outputs = step.compute(rows, step_number)
        except BaseException:
            meeting.abort()
            raise
        return [np.asarray(t) for t in outputs], {n: np.asarray(v) for n, v in step.values.items()}

    results = in_threads(worker, len(shares))
    for outputs, values in results[1:]:
        for one, other in zip(outputs, results[0][0], strict=True):
            np.testing.assert_array_equal(one, other)
        for name, value in values.items():
            np.testing.assert_array_equal(value, results[0][1][name], err_msg=name)
    return results[0]


def in_threads(function: Callable[[int], Any], number: int) -> list[Any]:
    """What the function gives for 0 to `number` - 1; the first error that is no consequence."""
    with ThreadPoolExecutor(number) as pool:
        futures = [pool.submit(function, i) for i in range(number)]
    errors = [e for f in futures if (e := f.exception()) is not None]
    for error in sorted(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
        raise error
    return [f.result() for f in futures]
