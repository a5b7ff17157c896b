"""Where the values in the logs of a `train_step` come from, and their values for a whole step.

A step returns a dict. Most values are results of metrics: they are taken from the metrics after
the sums of all workers have been assigned. Values computed from metrics alone (a perplexity from
the mean loss) are computed again from these. Others (the loss of this batch, a gradient norm) are
averaged over the micro-batches, weighted by examples. Which is which is read from the graph of the
step; if it runs eagerly, the name tells.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from hvd_elastic_keras.keras_internals.held_objects import metrics_of
from hvd_elastic_keras.keras_internals.model_variables import unwrapped

RESULT = "result"
"""Origin of a value that `Model.get_metrics_result()` has under the same name."""
AVERAGE = "average"
FROM_METRICS = "from metrics"
"""Origin of a value that depends on metrics; see `FromMetrics` if on nothing else."""


@dataclasses.dataclass(frozen=True)
class LogPlan:
    """The origin of each value: one of the constants, or how it follows from metrics."""

    origins: Mapping[str, Any]

    @property
    def averaged(self) -> tuple[str, ...]:
        """The names of values that are averaged."""
        return tuple(name for name, origin in self.origins.items() if origin == AVERAGE)

    @property
    def num_averages(self) -> int:
        """How many values are averaged."""
        return len(self.averaged)

    def values(self, model: keras.Model, averages: list[tf.Tensor]) -> dict[str, Any]:
        """The logs of a whole step; call it after everything has been assigned."""
        results = _flat(model.get_metrics_result()) if RESULT in self.origins.values() else {}
        rest = iter(averages)
        values = {}
        for name, origin in self.origins.items():
            if origin == AVERAGE:
                values[name] = next(rest)
            elif origin == RESULT:
                values[name] = results[name]
            else:
                values[name] = origin.value()
        return values


@dataclasses.dataclass(frozen=True)
class FromMetrics:
    """A value that follows from the states of metrics alone.

    Attributes:
      symbol: the value in the graph of the step.
      states: variables of metrics, each with the tensor in that graph that it becomes.
    """

    symbol: tf.Tensor
    states: Sequence[tuple[Any, tf.Tensor]]

    @property
    def is_complete(self) -> bool:
        """Whether there is nothing else that the value depends on: no data, no other variable."""
        return not any(operation.type == "Placeholder" for operation in self._operations())

    def value(self) -> tf.Tensor:
        """The value for the present states: its operations, copied to the present graph."""
        present = {tensor.name: tf.identity(variable.value) for variable, tensor in self.states}
        if self.symbol.name in present:
            return present[self.symbol.name]
        names = {operation.name for operation in self._operations()}
        whole = self.symbol.graph.as_graph_def()
        part = tf.compat.v1.GraphDef(versions=whole.versions, library=whole.library)
        for node in whole.node:
            if node.name in names:
                copied = part.node.add()
                copied.CopyFrom(node)
                copied.ClearField("input")
                copied.input.extend(name for name in node.input if not name.startswith("^"))
        used = {i.name for o in self._operations() for i in o.inputs} & present.keys()
        (value,) = tf.graph_util.import_graph_def(
            part,
            input_map={name: present[name] for name in used},
            return_elements=[self.symbol.name],
        )
        return value

    def _operations(self) -> list[tf.Operation]:
        """What lies between the states and the value."""
        reached = {tensor.name for _, tensor in self.states}
        found: dict[str, tf.Operation] = {}
        todo = [self.symbol]
        while todo:
            tensor = todo.pop()
            if tensor.name not in reached:
                reached.add(tensor.name)
                found[tensor.op.name] = tensor.op
                todo += tensor.op.inputs
        return list(found.values())


def plan(
    model: keras.Model,
    logs: Any,
    scope: keras.StatelessScope,
) -> tuple[LogPlan, list[tf.Tensor]]:
    """Finds the origins, in the graph of the step that returned `logs`, when it has ended.

    Args:
      scope: in which the step ran.

    Returns:
      The plan, and the values of this micro-batch that are to be averaged, each of shape [].
    """
    values = _flat(logs) if isinstance(logs, Mapping) else {}
    names = set(_flat(model.get_metrics_result())) if values else set()
    origins: dict[str, Any] = {}
    averages = []
    for name, variable_or_value in values.items():
        value = unwrapped(variable_or_value)
        origins[name] = _origin(model, name, name in names, value)
        if origins[name] is FROM_METRICS:
            origins[name] = _from_metrics(model, value, scope)
        if origins[name] == AVERAGE:
            averages.append(tf.reduce_mean(tf.cast(value, tf.float32)))
    return LogPlan(origins), averages


def _origin(
    model: keras.Model,
    name: str,
    is_name_of_result: bool,
    value: Any,
) -> str:
    if not isinstance(value, tf.Tensor) or tf.executing_eagerly():
        # The name is all there is to go by.
        return RESULT if is_name_of_result else AVERAGE
    read = _variables_read(value)
    if not any(_handle(v) in read for m in metrics_of(model) for v in m.variables):
        return AVERAGE
    return RESULT if is_name_of_result else FROM_METRICS


def _from_metrics(
    model: keras.Model, value: tf.Tensor, scope: keras.StatelessScope
) -> FromMetrics | str:
    new = [(v, scope.get_current_value(v)) for m in metrics_of(model) for v in m.variables]
    origin = FromMetrics(value, [(v, unwrapped(t)) for v, t in new if t is not None])
    return origin if origin.is_complete else AVERAGE


def _variables_read(value: tf.Tensor) -> set[int]:
    """Ids of the handles of all variables that a symbolic tensor depends on."""
    captured = {id(internal): id(external) for external, internal in value.graph.captures}
    seen: set[int] = set()
    found: set[int] = set()
    todo = [value]
    while todo:
        tensor = todo.pop()
        if id(tensor) in captured:
            found.add(captured[id(tensor)])
        if id(tensor.op) not in seen:
            seen.add(id(tensor.op))
            todo += tensor.op.inputs
    return found


def _handle(variable: Any) -> int:
    return id(variable.value.handle)


def _flat(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Logs without nesting, as `fit` shows them."""
    result: dict[str, Any] = {}
    for name, value in logs.items():
        if isinstance(value, Mapping):
            result.update(_flat(value))
        else:
            result[name] = value
    return result
