"""The graph of a step over a whole batch. In it, a variable is a value."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.data.examples.structure import Layout
from hvd_elastic_keras.keras_internals.traced_graphs import FUNCTIONS, body_of, inlined_functions
from hvd_elastic_keras.step.partition.stateful_draws import StatefulDraws

WITHOUT_EFFECT = frozenset({"NoOp", "PrintV2", "CheckNumericsV2"})
READS = ("ReadVariableOp", "VariableShape", "VarIsInitializedOp", "ResourceGather")
"""Operations that only read a variable."""
ASSIGNMENTS: dict[str, Callable[[Any, Any], Any] | None] = {
    "AssignVariableOp": None,
    "AssignAddVariableOp": tf.add,
    "AssignSubVariableOp": tf.subtract,
}
SCATTERS: dict[str, Callable[..., Any]] = {
    "ResourceScatterAdd": tf.tensor_scatter_nd_add,
    "ResourceScatterSub": tf.tensor_scatter_nd_sub,
    "ResourceScatterUpdate": tf.tensor_scatter_nd_update,
    "ResourceScatterMax": tf.tensor_scatter_nd_max,
    "ResourceScatterMin": tf.tensor_scatter_nd_min,
    "ResourceScatterNdAdd": tf.tensor_scatter_nd_add,
    "ResourceScatterNdSub": tf.tensor_scatter_nd_sub,
    "ResourceScatterNdUpdate": tf.tensor_scatter_nd_update,
}
WRITES = frozenset((*ASSIGNMENTS, *SCATTERS, "ResourceStridedSliceAssign"))
"""Operations that assign to a variable."""
SLICE = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One of the tensors that a batch consists of.

    Attributes:
      spec: the form of the tensor.
      placeholders: for the tensor, or for the components of a ragged or sparse tensor.
      per_row: entries of the first axis for each row. 0: the tensor has no rows, and all workers
        have the whole tensor.
    """

    spec: Any
    placeholders: tuple[Any, ...]
    per_row: int


@dataclasses.dataclass(frozen=True)
class CapturedStep:
    """The graph of a traced step: what the step does to a batch.

    Attributes:
      graph: its operations.
      leaves: the tensors of the batch.
      number: the placeholder of the step's number, from which some random numbers follow.
      variables: the variables, by the names of the placeholders of their handles.
      constants: other tensors from outside, by the names of their placeholders.
      results: makes the results of the step from the outputs of the graph.
      function: takes the step itself, given the tensors of a whole batch and the step's number.
      step: the Python function from which `function` was traced.
      stateful_draws: TensorFlow's names of operations that would draw from a state.
      draws_by_xla: whether XLA draws random numbers. It makes other numbers from the same bits.
    """

    graph: Any
    leaves: tuple[Leaf, ...]
    number: Any
    variables: dict[str, tf.Variable]
    constants: dict[str, Any]
    results: Callable[[Sequence[Any]], Any]
    function: Callable[..., Any]
    step: Callable[..., Any]
    stateful_draws: tuple[str, ...] = ()
    draws_by_xla: bool = False

    @functools.cached_property
    def assigned(self) -> frozenset[str]:
        """The names of the handles of variables that the step assigns to."""
        return frozenset(assigned_in(self.graph, {name: name for name in self.variables}))

    @property
    def batch(self) -> tuple[Any, ...]:
        """The placeholders of the batch, including placeholders of components."""
        return tuple(p for leaf in self.leaves for p in leaf.placeholders)


def assigned_in(graph: Any, handles: dict[str, str]) -> Iterator[str]:
    """Yields the handles to which operations assign.

    Args:
      handles: the handles, by the names of tensors of the graph.
    """
    known = dict(handles)
    for op in operations(graph):
        if op.type == "Identity" and op.inputs[0].name in known:
            known[op.outputs[0].name] = known[op.inputs[0].name]
        elif op.type in WRITES:
            yield known[op.inputs[0].name]
        skipped = int("then_branch" in FUNCTIONS.get(op.type, ()))
        for function in FUNCTIONS.get(op.type, ()):
            if (body := body_of(graph, op, function)) is not None:
                pairs = zip(list(op.inputs)[skipped:], body.inputs, strict=True)
                inner = {i.name: known[o.name] for o, i in pairs if o.name in known}
                yield from assigned_in(body, inner) if inner else ()


def capture(
    step: Callable[[Any], Any],
    batch_spec: Any,
    *,
    seed: int = 0,
    per_row: Sequence[int] | None = None,
    draws_by_xla: bool = False,
) -> CapturedStep:
    """Traces a step.

    Random numbers that would come from a state inside the process follow from `seed` and from the
    number of the step instead. They are the same on all workers, but differ from plain `fit`.

    Args:
      step: a `train_step` or `test_step`. Its variables exist already.
      batch_spec: a structure of specs of tensors, or None where batches have nothing.
      per_row: for each tensor, the entries of its first axis for each row, or 0. The default is 0
        for a scalar and for a tensor whose first dimension has a known size, else 1.

    Raises:
      ConfigurationError: the step draws from a state in a loop.
    """
    layout = Layout(batch_spec)
    names: set[str] = set()

    def traced(*flat: Any) -> Any:
        *leaves, number = flat
        draws = StatefulDraws(number, seed)
        with inlined_functions(), draws.replaced():
            results = step(layout.pack(leaves))
        names.update(draws.names)
        return results

    function = tf.function(traced, autograph=False).get_concrete_function(
        *layout.flat_spec, tf.TensorSpec([], tf.int64)
    )
    graph = function.graph
    inputs = iter(graph.inputs)
    leaves = []
    for i, spec in enumerate(layout.flat_spec):
        parts = tf.nest.flatten(spec, expand_composites=True)
        rows = _per_row(spec) if per_row is None else per_row[i]
        leaves.append(Leaf(spec, tuple(next(inputs) for _ in parts), rows))
    structure = function.structured_outputs
    return CapturedStep(
        graph,
        tuple(leaves),
        next(inputs),
        *captured_by(graph),
        lambda outputs: _filled(structure, outputs),
        function,
        traced,
        tuple(sorted(names)),
        draws_by_xla,
    )


def captured_by(graph: Any) -> tuple[dict[str, tf.Variable], dict[str, Any]]:
    """Returns the variables and the other tensors that a graph takes from outside.

    Both are by the names of their placeholders.
    """
    owners = {id(v.handle): v for v in graph.variables}
    captures = [(inner.name, outer) for outer, inner in graph.captures]
    return (
        {name: owners[id(outer)] for name, outer in captures if id(outer) in owners},
        {name: outer for name, outer in captures if id(outer) not in owners},
    )


def _per_row(spec: Any) -> int:
    return int(spec.shape.rank is None or (spec.shape.rank > 0 and spec.shape[0] is None))


def _filled(structure: Any, outputs: Sequence[Any]) -> Any:
    """Returns the structure with its tensors replaced by outputs, in their order."""
    left = iter(outputs)
    leaves = [next(left) if tf.is_tensor(v) else v for v in tf.nest.flatten(structure)]
    return tf.nest.pack_sequence_as(structure, leaves)


def operations(graph: Any) -> list[Any]:
    """Returns all operations that are needed, in the order in which they were made.

    But each operation comes after its inputs: the gradient of a loop adds inputs to the loop, which
    is older than these inputs. An operation is needed if a result of the graph or an effect follows
    from it. TensorFlow itself does not run the others.
    """
    ordered: list[Any] = []
    done: set[Any] = set()
    needed = _needed(graph)
    todo = [op for op in reversed(graph.get_operations()) if op in needed]
    while todo:
        op = todo.pop()
        if op in done:
            continue
        before = [o for o in (*(t.op for t in op.inputs), *op.control_inputs) if o not in done]
        if before:
            todo += [op, *before]
        else:
            done.add(op)
            ordered.append(op)
    return [op for op in ordered if op.type != "Placeholder" and op.type not in WITHOUT_EFFECT]


def _needed(graph: Any) -> set[Any]:
    """Returns the operations from which results of a graph, or effects, follow."""
    todo = [t.op for t in graph.outputs] + list(graph.control_outputs)
    todo += [op for op in graph.get_operations() if op.op_def.is_stateful and op.type not in READS]
    needed: set[Any] = set()
    while todo:
        op = todo.pop()
        if op not in needed:
            needed.add(op)
            todo += [t.op for t in op.inputs]
            todo += op.control_inputs
    return needed


def on_variable(op: Any, inputs: Sequence[Any], values: dict[str, Any]) -> list[Any] | None:
    """Computes an operation on a variable. It reads and assigns `values`.

    Args:
      values: the values of variables, by the names of their handles.

    Returns:
      The outputs of the operation; None if it is not on a variable.

    Raises:
      NotImplementedError: the operation is on a variable, but its effect is unknown.
    """
    kind = op.type
    if not any(t.dtype == tf.resource for t in op.inputs):
        return None
    if kind == "Identity":
        return list(inputs)
    name = inputs[0]
    if not isinstance(name, str):  # for example a table
        return None
    if kind == "ReadVariableOp":
        return [values[name]]
    if kind in ASSIGNMENTS:
        combine = ASSIGNMENTS[kind]
        values[name] = inputs[1] if combine is None else combine(values[name], inputs[1])
        return []
    if kind == "VariableShape":
        return [tf.constant(values[name].shape.as_list(), op.get_attr("out_type"))]
    if kind == "VarIsInitializedOp":
        return [tf.constant(True)]
    if kind == "ResourceGather":
        return [tf.gather(values[name], inputs[1], batch_dims=op.get_attr("batch_dims"))]
    if kind == "ResourceGatherNd":
        return [tf.gather_nd(values[name], inputs[1])]
    if kind in SCATTERS:
        indices = inputs[1] if "Nd" in kind else inputs[1][..., None]
        values[name] = SCATTERS[kind](values[name], indices, _spread(values[name], *inputs[1:]))
        return []
    if kind == "ResourceStridedSliceAssign":
        masks = {mask: op.get_attr(mask) for mask in SLICE}
        values[name] = tf.raw_ops.TensorStridedSliceUpdate(
            input=values[name],
            **dict(zip(("begin", "end", "strides", "value"), inputs[1:], strict=True)),
            **masks,
        )
        return []
    raise NotImplementedError(f"{kind} on a variable")


def _spread(value: Any, indices: Any, updates: Any) -> Any:
    """Spreads a single number over all elements of the rows that `indices` name."""
    if updates.shape.rank != 0:
        return updates
    return tf.fill(tf.concat([tf.shape(indices), tf.shape(value)[1:]], 0), updates)


def is_for_xla(op: Any) -> bool:
    """Whether an operation calls a function that XLA has to compile."""
    return any(name == "_XlaMustCompile" and op.get_attr(name) for name in op.node_def.attr)
