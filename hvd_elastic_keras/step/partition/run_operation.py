"""Runs one operation of a step for a worker, with the worker's rows in place of all."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvd_elastic_keras.keras_internals.traced_graphs import (
    PYTHON_CALLS,
    emit,
    emit_by_xla,
    emit_operation,
)
from hvd_elastic_keras.step.partition.captured_step import CapturedStep
from hvd_elastic_keras.step.partition.collectives import WorkerCollectives
from hvd_elastic_keras.step.partition.part import Part, PartSizes
from hvd_elastic_keras.step.partition.plan import PlannedOperation
from hvd_elastic_keras.step.partition.rules.per_row import draws
from hvd_elastic_keras.step.partition.rules.states import CONJUNCT, Decision, State, is_sharded
from hvd_elastic_keras.step.partition.step_variables import StepVariables

COPIES = ("Identity", "StopGradient")
"""Operations that need not be added again: no gradient is taken of a step that has been traced."""


class OperationRunner:
    """Runs the operations of a worker's part of a step.

    Args:
      captured: the step.
      part: the rows of this worker.
      sizes: sizes of these rows and of all.
      collectives: tell which assertions run.
      variables: the variables as the step has changed them so far.
    """

    def __init__(
        self,
        captured: CapturedStep,
        part: Part,
        sizes: PartSizes,
        collectives: WorkerCollectives,
        variables: StepVariables,
    ) -> None:
        self._captured = captured
        self._part = part
        self._sizes = sizes
        self._collectives = collectives
        self._variables = variables
        self._python_calls: dict[Any, Any] = {}
        self._constants: dict[Any, list[Any]] = {}

    def run(self, planned: PlannedOperation, inputs: list[Any]) -> list[Any]:
        """Runs the operation itself."""
        op = planned.op
        if op.type == "Const" and not tf.executing_eagerly():
            return self._constant(op)
        python_first = self._python_comes_first(op)
        if op.type in COPIES and not python_first:
            return inputs
        inputs = self._with_local_sizes(planned, inputs)
        on_variables = self._variables.used_by(op, inputs)
        if on_variables is not None:
            return on_variables
        if self._captured.draws_by_xla and draws(op):
            return emit_by_xla(op, inputs)
        return self._in_order(op, inputs) if python_first else emit(op, inputs)

    def _constant(self, op: Any) -> list[Any]:
        """Adds a constant, once for each graph: of the constants of a step, few are different."""
        value = op.get_attr("value").SerializeToString()
        key = (tf.compat.v1.get_default_graph(), value)
        if key not in self._constants:
            self._constants[key] = emit(op, [])
        return self._constants[key]

    def assertion(self, planned: PlannedOperation, inputs: list[Any]) -> list[Any]:
        """Checks what the user's step checks, unless a worker has no rows."""
        op, want = planned.op, planned.decision.want
        if not self._collectives.asserts(planned.level):
            return inputs[: len(op.outputs)]
        if op.type == "CheckNumerics":
            (value,) = inputs
            return emit(op, [tf.where(self._part.has_rows, value, tf.zeros_like(value))])
        is_excused = tf.logical_not(self._part.has_rows)
        return emit(
            op,
            [
                tf.logical_or(value, is_excused) if state == CONJUNCT else value
                for value, state in zip(inputs, want, strict=True)
            ],
        )

    def _python_comes_first(self, op: Any) -> bool:
        """Whether the operation calls Python code, or may have to wait for such a call."""
        if tf.executing_eagerly():
            return False
        return op.type in PYTHON_CALLS or bool(self._python_calls and op.control_inputs)

    def _in_order(self, op: Any, inputs: list[Any]) -> list[Any]:
        """Adds an operation after the Python code that it waits for."""
        with tf.control_dependencies(self._python_before(op)):
            made = emit_operation(op, inputs)
        if op.type in PYTHON_CALLS:
            self._python_calls[op] = made
        return list(made.outputs)

    def _python_before(self, op: Any) -> list[Any]:
        graph = tf.compat.v1.get_default_graph()
        found: list[Any] = []
        for before in op.control_inputs:
            if before in self._python_calls:
                found.append(self._python_calls[before])
            elif before.type == "NoOp":
                found += self._python_before(before)
        return [made for made in found if made.graph is graph]

    def _with_local_sizes(self, planned: PlannedOperation, inputs: list[Any]) -> list[Any]:
        decision = planned.decision
        if decision.local_size is not None:
            i, axis = decision.local_size
            form = decision.forms[0] if decision.forms else None
            if form is not None and inputs[i].shape == [len(form)]:
                shape = self._sizes.own_shape(form, axis, inputs[i].dtype)
            else:
                shape = self._sizes.own_shape_of(inputs[i], axis)
            inputs = [*inputs[:i], shape, *inputs[i + 1 :]]
        if decision.open_shape is not None:
            i = decision.open_shape
            inputs = [*inputs[:i], tf.constant(-1, inputs[i].dtype), *inputs[i + 1 :]]
        return inputs

    def shapes(self, op: Any, inputs: list[Any], decision: Decision) -> list[Any]:
        """Returns whole shapes, sizes or ranks of tensors of which a worker has its rows."""
        made = []
        for i, (value, out) in enumerate(zip(inputs, op.outputs, strict=True)):
            state, form = decision.want[i], decision.forms[i]
            if form is not None and not decision.needs(i):
                shape = self._sizes.whole_shape(form, out.dtype)
            elif op.type == "Rank":
                return emit(op, inputs)
            elif state.axis is None:
                shape = tf.shape(value, out.dtype)
            else:
                shape = self._sizes.whole_shape_of(value, state.at_axis, out.dtype)
            if op.type == "Size":
                shape = tf.reduce_prod(shape)
            elif op.type == "Rank":
                shape = tf.size(shape)
            made.append(shape)
        return made

    def element_shape(self, op: Any, inputs: list[Any], state: State) -> Any:
        """Returns the shape of the elements of a list, of which a worker has its rows."""
        shape = emit(op, inputs)[0]
        if not is_sharded(state) or shape.shape.rank == 0:
            return shape
        return self._sizes.whole_element_shape(shape, state.at_axis)
