"""Checks the plan of a step in one process, which runs one thread for each worker on one batch.

Together, the threads' parts of a tensor make up the whole tensor. So each operation is also
computed from whole inputs, and the threads' parts must make up the same result. A wrong rule is
found at the operation where it is wrong. Rules are proved by their tests: this check is for users
who doubt them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_elastic_keras.keras_internals.traced_graphs import emit
from hvd_elastic_keras.step.partition.captured_step import READS, CapturedStep, Leaf, operations
from hvd_elastic_keras.step.partition.collectives import (
    Meeting,
    ThreadCollectives,
    WorkerCollectives,
    in_threads,
)
from hvd_elastic_keras.step.partition.execution import PartialStep, Versions
from hvd_elastic_keras.step.partition.moments import Moments
from hvd_elastic_keras.step.partition.part import Part, by_block, without_blocks
from hvd_elastic_keras.step.partition.plan import Analysis, Plan, PlannedOperation
from hvd_elastic_keras.step.partition.rules.states import (
    CONJUNCT,
    PARTIAL,
    REPLICATED,
    How,
    State,
    is_sharded,
)

ROUNDING = {tf.float64: 1e-9, tf.complex128: 1e-9, tf.float32: 1e-4, tf.complex64: 1e-4}
"""How much sums in different orders may differ, relative to the largest number. For other types, it
is 1e-2."""
LEAST = 1e-3
"""The largest number counts as at least this: zeros are often sums that cancel out."""
OPAQUE = (tf.variant, tf.resource)
Taken = tuple[list[Any], dict[str, Any]]
"""A worker's results: the outputs of the graph, and the values of the variables."""


def check_step(
    captured: CapturedStep, analysis: Analysis, batch: Sequence[Any], shares: Sequence[int]
) -> list[str]:
    """Returns the problems in the plan of a step for workers with these shares; usually none.

    This process computes everything, operation by operation. The activations of the whole batch
    must fit into its memory several times. Nothing is assigned.

    Args:
      batch: the tensors of a whole batch, as the step was captured for; at least two rows.
      shares: number of rows of each worker.
    """
    problems = list(out_of_order(analysis.plan))
    try:
        taken = taken_in_threads(captured, analysis, batch, shares, problems=problems)
    except (tf.errors.OpError, ValueError) as error:
        return [*problems, f"a worker fails: {error}"]
    names = {n: getattr(v, "path", v.name) for n, v in captured.variables.items()}
    return [*problems, *_disagreements(taken, names)]


def out_of_order(plan: Plan) -> Iterator[str]:
    """Yields a message for each two operations on a variable that have changed places.

    At least one of the two assigns to the variable.
    """
    places = {op: i for i, op in enumerate(operations(plan.graph))}
    seen: dict[str, list[PlannedOperation]] = {}
    names = {t.name: t.name for t in plan.graph.inputs}
    for planned in plan.operations:
        op = planned.op
        for tensor in op.inputs:
            if tensor.dtype != tf.resource or tensor.name not in names:
                continue
            if op.type == "Identity":
                names[op.outputs[0].name] = names[tensor.name]
                continue
            before = seen.setdefault(names[tensor.name], [])
            for other in before:
                writes = op.type not in READS or other.op.type not in READS
                if writes and places[other.op] > places[op]:
                    yield f"{other.op.name} comes before {op.name}, on the same variable"
            before.append(planned)
        for body in planned.bodies:
            yield from out_of_order(body)


def taken_in_threads(
    captured: CapturedStep,
    analysis: Analysis,
    batch: Sequence[Any],
    shares: Sequence[int],
    *,
    problems: list[str] | None = None,
    step_number: int = 0,
    half: tf.DType | None = None,
    idle: Analysis | None = None,
) -> list[Taken]:
    """Takes one step with one thread for each share, and returns the results of each worker.

    Args:
      problems: a list to which problems are added. Each decision is then checked by itself. None:
        no decision is checked.
      half: the type in which gradients travel, where the analysis says so.
      idle: the plan of workers without rows; None: the plan of all.
    """
    meeting = Meeting(len(shares))

    def worker(number: int) -> Taken:
        has_rows, part = shares[number] > 0, _part(shares, number)
        collectives = WorkerCollectives(ThreadCollectives(meeting, number, half), has_rows)
        plan = analysis if has_rows else idle or analysis
        step = PartialStep(captured, plan, part, collectives)
        if problems is not None:
            step = Checked(captured, analysis, part, collectives)
            step.meeting, step.worker, step.has_rows = meeting, number, has_rows
            step.problems = problems
        try:
            leaves = zip(batch, captured.leaves, strict=True)
            outputs = step.compute([_rows(b, leaf, part) for b, leaf in leaves], step_number)
        except BaseException:
            meeting.abort()
            raise
        return outputs, step.variables.values

    return in_threads(worker, len(shares))


def _part(shares: Sequence[int], number: int) -> Part:
    """Returns the part of one worker. A worker without rows gets row 0: any row will do."""
    low, size = (sum(shares[:number]), shares[number]) if shares[number] else (0, 1)
    is_first = number == next(i for i, share in enumerate(shares) if share)
    of_rows = [tf.constant(n, tf.int32) for n in (low, size, sum(shares))]
    has_rows = tf.constant(shares[number] > 0)
    return Part(of_rows[0], of_rows[1], of_rows[2], tf.constant(is_first), has_rows)


def _rows(tensor: Any, leaf: Leaf, part: Part) -> Any:
    """Returns the rows of a worker; the whole tensor if it has no rows."""
    low, size = int(part.low) * leaf.per_row, int(part.size) * leaf.per_row
    if size == 0:
        return tf.identity(tensor)
    if isinstance(tensor, tf.SparseTensor):
        sizes = tensor.dense_shape.numpy()[1:]
        return tf.sparse.slice(tensor, [low, *(0 for _ in sizes)], [size, *sizes])
    rows = tensor[low : low + size]
    return rows if isinstance(tensor, tf.RaggedTensor) else tf.constant(rows)


def _disagreements(taken: list[Taken], names: dict[str, str]) -> Iterator[str]:
    """Yields a message for each variable whose bits are not the same on all workers."""
    for name, value in taken[0][1].items():
        bits = np.asarray(value).tobytes()
        others = [i for i, t in enumerate(taken) if np.asarray(t[1][name]).tobytes() != bits]
        if others:
            yield f"{names[name]}: workers {others} have other values than worker 0"


def difference(found: Any, expected: Any, parts: Sequence[Any] = ()) -> str:
    """Returns how two tensors differ by more than rounding; empty if they do not.

    Args:
      parts: the summands of `found`.
    """
    if found.shape != expected.shape:
        return f"of shape {found.shape.as_list()}, expected {expected.shape.as_list()}"
    dtype = expected.dtype
    if not (dtype.is_floating or dtype.is_complex):
        unequal = int(tf.math.count_nonzero(tf.not_equal(found, expected)))
        return f"{unequal} of {tf.size(expected)} elements differ" if unequal else ""
    one, other, *wide = (_wide(t) for t in (found, expected, *parts))
    numbers = [np.abs(t[np.isfinite(t)]).max(initial=LEAST) for t in (other, *wide)]
    rounding = ROUNDING.get(dtype, 1e-2) * max(numbers)
    wrong = ~np.isclose(one, other, rtol=0, atol=rounding, equal_nan=True)
    if not wrong.any():
        return ""
    at = tuple(int(i[0]) for i in np.nonzero(np.atleast_1d(wrong)))
    pair = [np.atleast_1d(t)[at] for t in (one, other)]
    return f"{pair[0]:.7g} at {list(at)}, expected {pair[1]:.7g}; {wrong.sum()} elements differ"


def _wide(tensor: Any) -> Any:
    return np.asarray(tf.cast(tensor, tf.complex128 if tensor.dtype.is_complex else tf.float64))


class Checked(PartialStep):
    """A step that also computes each operation from whole inputs, to compare the results.

    The parts of the workers must make up the same result.

    Attributes:
      problems: the problems found; the first worker notes them.
    """

    meeting: Meeting
    worker: int
    has_rows: bool
    problems: list[str]

    def _operation(self, planned: PlannedOperation, there: dict[str, Versions]) -> None:
        super()._operation(planned, there)
        if planned.decision.how == How.DRAW:
            for i, state in planned.cut_again.items():
                tensor = planned.op.outputs[i]
                own, whole = (there[tensor.name][s] for s in (state, REPLICATED))
                self._compare(f"the drawn rows of {tensor.name}", tensor, state, own, whole)

    def _computed(self, planned: PlannedOperation, inputs: list[Any]) -> list[Any]:
        outputs = super()._computed(planned, inputs)
        op, decision = planned.op, planned.decision
        if planned.bodies or any(t.dtype in OPAQUE for t in (*op.inputs, *op.outputs)):
            return outputs
        states = [*decision.want, *decision.out]
        if {*states} <= {REPLICATED}:
            return outputs
        values = self._exchanged(op.name, [*inputs, *outputs])
        if self.worker == 0:
            whole = [_whole(s, v) for s, v in zip(states, values, strict=True)]
            count = len(inputs)
            for i, expected in enumerate(emit(op, whole[:count])):
                wrong = difference(whole[count + i], expected, values[count + i])
                takes, gives = (", ".join(map(str, s)) for s in (decision.want, decision.out))
                self._note(f"{op.type} {op.name} ({takes} to {gives})", wrong)
        return outputs

    def _find_moments(self, moments: Sequence[Moments], there: dict[str, Versions]) -> None:
        super()._find_moments(moments, there)
        for m in moments:
            (rows,) = self._exchanged(m.mean.name, [there[m.mean.inputs[0].name][m.state]])
            if self.worker == 0:
                expected = tf.nn.moments(_whole(m.state, rows), m.axes)
                for op, whole in zip((m.mean, m.variance), expected, strict=True):
                    found = there[op.outputs[0].name][REPLICATED]
                    self._note(
                        f"{op.type} {op.name}", difference(found, tf.reshape(whole, found.shape))
                    )

    def _own_rows(self, tensor: Any, whole: Any, axis: int) -> Any:
        own = super()._own_rows(tensor, whole, axis)
        self._compare(f"the own rows of {tensor.name}", tensor, State("sharded", axis), own, whole)
        return own

    def _gather(self, tensors: Sequence[Any], there: dict[str, Versions]) -> None:
        first = [next(iter(there[t.name].items())) for t in tensors]
        super()._gather(tensors, there)
        for tensor, (state, value) in zip(tensors, first, strict=True):
            whole = there[tensor.name][REPLICATED]
            self._compare(f"the rows of {tensor.name}, gathered", tensor, state, value, whole)

    def _compare(self, what: str, tensor: Any, state: State, own: Any, whole: Any) -> None:
        """Compares the parts that the workers have in this state with the whole tensor."""
        if tensor.dtype in OPAQUE:
            return
        (values,) = self._exchanged(what, [own])
        if self.worker == 0:
            self._note(what, difference(whole, _whole(state, values)))

    def _exchanged(self, what: str, tensors: list[Any]) -> list[list[Any]]:
        """Returns, for each tensor, the values of the workers that have rows."""
        given = self.meeting.exchanged(self.worker, ("check", what), (self.has_rows, tensors))
        return [list(values) for values in zip(*(t for rows, t in given if rows), strict=True)]

    def _note(self, what: str, wrong: str) -> None:
        if wrong:
            self.problems.append(f"{what}: {wrong}")


def _whole(state: State, values: list[Any]) -> Any:
    """Returns the whole tensor of which the workers hold these values."""
    if state.blocks is not None:
        return without_blocks(tf.concat([by_block(v, state.blocks) for v in values], 1))
    if is_sharded(state):
        return tf.concat(values, state.at_axis)
    if state == CONJUNCT:
        return tf.reduce_all(tf.stack(values), 0)
    return tf.add_n(values) if state == PARTIAL else values[0]
