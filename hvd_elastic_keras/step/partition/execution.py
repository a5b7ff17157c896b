"""Computes a worker's part of a partitioned step.

A worker has a tensor in one or more states. If a wanted state is missing, it is made from another
one. A collective makes a sharded or partial tensor replicated. A replicated tensor becomes sharded
by cutting out the worker's own rows, and partial by leaving its value to one worker. The same code
adds operations to the graph of a `tf.function`, or runs them eagerly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.keras_internals.traced_graphs import (
    emit,
)
from hvd_elastic_keras.step.partition.captured_step import CapturedStep
from hvd_elastic_keras.step.partition.collectives import Tail, WorkerCollectives, gathered_leaf
from hvd_elastic_keras.step.partition.moments import Moments, combined, own_moments
from hvd_elastic_keras.step.partition.part import (
    Part,
    PartSizes,
    drawn_rows,
    on_elements,
    rows_back,
    rows_first,
)
from hvd_elastic_keras.step.partition.plan import Analysis, Plan, PlannedOperation
from hvd_elastic_keras.step.partition.rules.states import (
    CONJUNCT,
    EMPTY,
    PARTIAL,
    REPLICATED,
    How,
    State,
    is_sharded,
    sharded,
)
from hvd_elastic_keras.step.partition.run_functions import run_branches, run_called, run_loop
from hvd_elastic_keras.step.partition.run_operation import OperationRunner
from hvd_elastic_keras.step.partition.step_sums import StepSums
from hvd_elastic_keras.step.partition.step_variables import StepVariables

TURNS_AT_ONCE = 10
"""Turns of a loop that may run at the same time: TensorFlow's default."""
Versions = dict[State, Any]
"""The available values of a tensor, by state."""


class PartialStep:
    """One worker's part of one step. An instance computes one step only.

    Args:
      name: prefix of the names of its collectives.
      tail: makes the tensor that travels with the last sums. It travels alone if the step has no
        collective at all.
      ready: returns an operation after which variables may change, called when all sums are known.
        Variables are then assigned where the step itself assigns them, in place: their new values
        take no memory of their own. If it is None, or the step runs eagerly, nothing is assigned.

    Attributes:
      variables: the variables as the step has changed them so far.
      sums: the sums of all workers, the tail among them.
      collectives: how this worker talks to the others.
      turns_at_once: turns of a loop that may run at the same time. A collective has one name in all
        turns, so that they follow each other.
    """

    def __init__(
        self,
        captured: CapturedStep,
        analysis: Analysis,
        part: Part,
        collectives: WorkerCollectives,
        *,
        name: str = "elastic",
        tail: Tail | None = None,
        ready: Callable[[PartialStep], Any] | None = None,
    ) -> None:
        self._captured = captured
        self._plan = analysis.plan
        self._last_level = max((c.level for c in analysis.collectives), default=0)
        in_place = analysis.ends_with_groups and not tf.executing_eagerly()
        self._ready = ready if in_place else None
        in_loop = any(c.in_loop for c in analysis.collectives)
        self.turns_at_once = 1 if in_loop else TURNS_AT_ONCE
        self._gathered_first = analysis.gathered
        self._part = part
        self._sizes = PartSizes(part.size, part.total)
        self.collectives = collectives
        self.variables = StepVariables(captured.variables)
        self._operations = OperationRunner(captured, part, self._sizes, collectives, self.variables)
        self.sums = StepSums(collectives, name, analysis.rounded, tail)

    def compute(self, rows: Sequence[tf.Tensor], number: Any = 0) -> list[tf.Tensor]:
        """Computes the step. Without `ready`, it assigns nothing.

        Args:
          rows: this worker's rows of each tensor of the batch; the whole tensor if it has no rows.
          number: the number of the step, an integer scalar.

        Returns:
          The outputs of the graph. `variables.values` then holds the new values of the variables.
        """
        captured = self._captured
        self.variables.read()
        given = self._given(rows, number)
        inputs = []
        for tensor in captured.graph.inputs:
            name = tensor.name
            if name in given:
                inputs.append(given[name])
            else:
                inputs.append(name if name in captured.variables else captured.constants[name])
        outputs = self.run(self._plan, inputs)
        self.sums.of_tail([*outputs, *self.variables.values.values()])
        return outputs

    def _given(self, rows: Sequence[Any], number: Any) -> dict[str, Any]:
        """Returns the tensors given to the step, by the names of their placeholders."""
        given = {self._captured.number.name: tf.cast(number, tf.int64)}
        low, total = self._part.low, self._part.total
        for i, (leaf, own) in enumerate(zip(self._captured.leaves, rows, strict=True)):
            whole = i in self._gathered_first
            value = gathered_leaf(own, self._gathered_rows, low, total) if whole else own
            components = tf.nest.flatten(value, expand_composites=True)
            given.update(zip((p.name for p in leaf.placeholders), components, strict=True))
        return given

    def run(self, plan: Plan, inputs: Sequence[Any]) -> list[Any]:
        """Computes a graph: that of the step, or of a function that it calls."""
        there: dict[str, Versions] = {
            t.name: {state: value}
            for t, state, value in zip(plan.graph.inputs, plan.ins, inputs, strict=True)
        }
        reductions, moments = sorted(plan.reductions.items()), sorted(plan.moments.items())
        gathers = sorted(plan.gathers.items())
        for planned in plan.operations:
            while gathers and gathers[0][0] <= planned.level:
                self._gather(gathers.pop(0)[1], there)
            while moments and moments[0][0] <= planned.level:
                self._find_moments(moments.pop(0)[1], there)
            while reductions and reductions[0][0] <= planned.level:
                self._reduce(*reductions.pop(0), plan, there)
            if planned.zeros is None:
                self._operation(planned, there)
            else:
                self._take_zeros(planned, there)
        for _, tensors in gathers:
            self._gather(tensors, there)
        for _, found in moments:
            self._find_moments(found, there)
        for level, tensors in reductions:
            self._reduce(level, tensors, plan, there)
        return [
            self._brought(t, there[t.name], want)
            for t, want in zip(plan.graph.outputs, plan.outs, strict=True)
        ]

    def _operation(self, planned: PlannedOperation, there: dict[str, Versions]) -> None:
        op, decision = planned.op, planned.decision
        if decision.how == How.ALIAS:  # also for tensors that are not there yet
            for tensor, result in zip(op.inputs, op.outputs, strict=True):
                there[result.name] = there.setdefault(tensor.name, {})
            return
        inputs = [
            self._brought(t, there[t.name], want)
            if there.get(t.name) or decision.needs(i)
            else None
            for i, (t, want) in enumerate(zip(op.inputs, decision.want, strict=True))
        ]
        outputs = self._computed(planned, inputs)
        for i, (tensor, state, value) in enumerate(
            zip(op.outputs, decision.out, outputs, strict=True)
        ):
            versions = there.setdefault(tensor.name, {})
            if i in planned.cut_again:
                again = planned.cut_again[i]
                if decision.how == How.DRAW and not self._captured.draws_by_xla:
                    versions[again] = self._drawn_rows(op, inputs)
                else:
                    versions[again] = self._own_rows(tensor, value, again.at_axis)
            versions[state] = value
            if not tf.executing_eagerly() and tensor.dtype not in (tf.variant, tf.resource):
                for version in versions.values():
                    # An operation that is added again may know less of shapes than the traced one.
                    if not version.shape.is_fully_defined():
                        version.set_shape(tensor.shape)

    def _take_zeros(self, planned: PlannedOperation, there: dict[str, Versions]) -> None:
        """Takes zeros for what a worker without rows gives to the round of collectives."""
        for i, shape in (planned.zeros or {}).items():
            tensor = planned.op.outputs[i]
            # Not constants: TensorFlow would run the collective once, when it optimises. A worker
            # with rows must not come here, and would spoil the sums of all.
            zero = tf.cast(tf.where(self._part.has_rows, math.nan, 0.0), tensor.dtype)
            there.setdefault(tensor.name, {})[planned.decision.out[i]] = tf.fill(shape, zero)

    # --- states --------------------------------------------------------------------------

    def _brought(self, tensor: Any, versions: Versions, want: State) -> Any:
        if want in versions:
            return versions[want]
        first, value = next(iter(versions.items()))
        if EMPTY in (first, want):
            return value
        if REPLICATED not in versions:
            if first == CONJUNCT:
                made = self.collectives.extreme(value, "All", self.sums.name("extreme"))
            elif first == PARTIAL:
                name = self.sums.name("sum")
                made = on_elements(tensor, value, lambda t: self.collectives.summed([t], name)[0])
            else:
                # All other tensors of rows are gathered together before. A list has one more axis.
                state = sharded(first.at_axis + 1)
                made = on_elements(tensor, value, lambda t: self._gathered([t], [state])[0])
            versions[REPLICATED] = made
        whole = versions[REPLICATED]
        if want.blocks is not None:
            whole = self._part.own_of_blocks(whole, want.blocks)
        elif is_sharded(want):
            whole = self._own_rows(tensor, whole, want.at_axis)
        elif want == PARTIAL:
            whole = on_elements(tensor, whole, self._part.on_first)
        versions[want] = whole
        return whole

    def _reduce(
        self, level: int, tensors: Sequence[Any], plan: Plan, there: dict[str, Versions]
    ) -> None:
        """Sums tensors that are wanted at the same time together, separately for each type."""
        todo = [t for t in tensors if t.dtype != tf.variant]
        is_last = plan is self._plan and level == self._last_level
        for dtype in sorted({t.dtype.name for t in todo}):
            group = [t for t in todo if t.dtype.name == dtype]
            parts = {t.name: there[t.name][PARTIAL] for t in group}
            # Another graph, as of a worker that joins, may know more of the shapes.
            shapes = {t.name: tf.TensorShape(plan.sum_shapes.get(t.name, t.shape)) for t in group}
            parts |= {
                name: tf.ensure_shape(parts[name], shape)
                for name, shape in plan.sum_shapes.items()
                if name in parts
            }
            if is_last and dtype == tf.float32.name:
                sums = self.sums.of_last_round(plan, parts, shapes)
            else:
                sums = self.sums.of_round(dtype, parts, shapes, may_round=plan is self._plan)
            for name, total in sums.items():
                there[name][REPLICATED] = total
        if is_last and self._ready is not None and self.sums.tail is not None:
            self._assign_from_here([*plan.gathers.get(level, ()), *todo], there)

    def _assign_from_here(self, tensors: Sequence[Any], there: dict[str, Versions]) -> None:
        """Assigns variables in place from now on. No collective may follow.

        Args:
          tensors: the results of the last round. What is computed from them waits until the
            variables may change, so that it does not wait in memory.
        """
        assert self._ready is not None
        ready = self._ready(self)
        self.variables.assign_from_here(ready)
        self.sums.ended = True
        # For several tensors, TensorFlow has no kernel that leaves texts on the host of a GPU.
        together = [t for t in tensors if t.dtype.is_floating]
        with tf.control_dependencies([ready]):
            results = tf.identity_n([there[t.name][REPLICATED] for t in together])
            for tensor, result in zip(together, results, strict=True):
                there[tensor.name][REPLICATED] = result
            for tensor in tensors:
                if not tensor.dtype.is_floating:
                    there[tensor.name][REPLICATED] = tf.identity(there[tensor.name][REPLICATED])

    def _find_moments(self, moments: Sequence[Moments], there: dict[str, Versions]) -> None:
        """Finds means and variances of the same round together, in one group for each type."""
        for dtype in sorted({m.mean.outputs[0].dtype.name for m in moments}):
            group = [m for m in moments if m.mean.outputs[0].dtype.name == dtype]
            rows = [there[m.mean.inputs[0].name][m.state] for m in group]
            own = own_moments(rows, group, self._sizes.fraction(rows[0].dtype))
            (whole,) = self.collectives.gathered([own], self.sums.name(f"moments_{dtype}"))
            for m, (mean, variance) in zip(group, combined(whole, group), strict=True):
                there.setdefault(m.mean.outputs[0].name, {})[REPLICATED] = mean
                there.setdefault(m.variance.outputs[0].name, {})[REPLICATED] = variance

    def _gather(self, tensors: Sequence[Any], there: dict[str, Versions]) -> None:
        """Gathers the rows of tensors that are wanted at the same time together."""
        first = [next(iter(there[t.name].items())) for t in tensors]
        wholes = self._gathered([value for _, value in first], [state for state, _ in first])
        for tensor, whole in zip(tensors, wholes, strict=True):
            there[tensor.name][REPLICATED] = whole

    def _gathered(self, values: Sequence[Any], states: Sequence[State]) -> list[Any]:
        """Returns whole tensors of which each worker has its rows in these states."""
        pairs = list(zip(values, states, strict=True))
        wholes = self.collectives.gathered([rows_first(*p) for p in pairs], self.sums.name("rows"))
        return [rows_back(w, s) for w, s in zip(wholes, states, strict=True)]

    def _gathered_rows(self, rows: Any) -> Any:
        return self.collectives.gathered([rows], self.sums.name("rows"))[0]

    def _own_rows(self, tensor: Any, whole: Any, axis: int) -> Any:
        return self._part.own_rows(tensor, whole, axis)

    def _drawn_rows(self, op: Any, inputs: list[Any]) -> Any:
        return drawn_rows(op, inputs, self._part.low, self._sizes)

    # --- operations ----------------------------------------------------------------------

    def _computed(self, planned: PlannedOperation, inputs: list[Any]) -> list[Any]:
        op, decision = planned.op, planned.decision
        match decision.how:
            case How.LOOP:
                return run_loop(self, planned, inputs)
            case How.COND:
                return run_branches(self, planned, inputs)
            case How.CALL:
                return run_called(self, planned, inputs)
            case How.MEAN:
                (mean,) = emit(op, inputs)
                return [mean * self._sizes.fraction(mean.dtype)]
            case How.EXTREME:
                local = emit(op, inputs)[0]
                return [self.collectives.extreme(local, op.type, self.sums.name("extreme"))]
            case How.ASSERTION:
                return self._operations.assertion(planned, inputs)
            case How.SHAPE:
                return self._operations.shapes(op, inputs, decision)
            case How.ELEMENT_SHAPE:
                return [self._operations.element_shape(op, inputs, decision.want[0])]
            case How.RUN | How.VARIABLE | How.DRAW:
                return self._operations.run(planned, inputs)
        raise NotImplementedError(decision.how)
