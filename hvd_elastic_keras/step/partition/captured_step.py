"""A step as a graph over one whole batch, whose variables are read and assigned as values."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.data.examples.structure import Layout
from hvd_elastic_keras.keras_internals.emission import function_of
from hvd_elastic_keras.keras_internals.inlined_functions import inlined_functions
from hvd_elastic_keras.step.partition.stateful_draws import StatefulDraws

WITHOUT_EFFECT = frozenset({"NoOp", "PrintV2", "CheckNumericsV2"})
FUNCTIONS = {
    **dict.fromkeys(("While", "StatelessWhile"), ("body", "cond")),
    **dict.fromkeys(("If", "StatelessIf"), ("then_branch", "else_branch")),
    **dict.fromkeys(("PartitionedCall", "StatefulPartitionedCall"), ("f",)),
}
"""Operations that call functions, and the names of these."""
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
      spec: its form.
      placeholders: for it, or for the components of a ragged or sparse tensor.
      per_row: so many entries of its first axis belong to each row; 0: it has no rows, and all
        workers have the whole of it.
    """

    spec: Any
    placeholders: tuple[Any, ...]
    per_row: int


@dataclasses.dataclass(frozen=True)
class CapturedStep:
    """What a step does to a batch.

    Attributes:
      graph: its operations.
      leaves: the tensors of the batch.
      number: the placeholder of the step's number, from which some random numbers follow.
      variables: by the name of a placeholder, the variable whose handle it is.
      constants: by the name of a placeholder, another tensor from outside.
      results: makes what the step returns of the outputs of the graph.
      function: takes the step itself, given the tensors of a whole batch and the step's number.
      step: what `function` was traced of.
      stateful_draws: TensorFlow's names of operations that would draw from a state.
      draws_by_xla: whether random numbers are those of XLA, which makes others of the same bits.
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
        """The placeholders of the batch, those of components included."""
        return tuple(p for leaf in self.leaves for p in leaf.placeholders)


def assigned_in(graph: Any, handles: dict[str, str]) -> Iterator[str]:
    """The handles that operations assign to, given those of tensors of the graph by their names."""
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
    """Traces a step for batches of any number of rows.

    Random numbers that would come from a state inside of the process follow from `seed` and from
    the number of the step: they are the same on all workers, and other ones than in plain `fit`.

    Args:
      step: a `train_step` or `test_step`, whose variables have been made.
      batch_spec: a structure of specs of tensors, or None where batches have nothing.
      per_row: of each tensor, so many entries of its first axis belong to each row, or 0. By
        default 1; 0 of a scalar, and of what has a first dimension of known size.

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
    owners = {id(v.handle): v for v in graph.variables}
    captures = [(inner.name, outer) for outer, inner in graph.captures]
    structure = function.structured_outputs
    return CapturedStep(
        graph,
        tuple(leaves),
        next(inputs),
        {name: owners[id(outer)] for name, outer in captures if id(outer) in owners},
        {name: outer for name, outer in captures if id(outer) not in owners},
        lambda outputs: _filled(structure, outputs),
        function,
        traced,
        tuple(sorted(names)),
        draws_by_xla,
    )


def _per_row(spec: Any) -> int:
    return int(spec.shape.rank is None or (spec.shape.rank > 0 and spec.shape[0] is None))


def _filled(structure: Any, outputs: Sequence[Any]) -> Any:
    """The structure with outputs in the place of its tensors, in their order."""
    left = iter(outputs)
    leaves = [next(left) if tf.is_tensor(v) else v for v in tf.nest.flatten(structure)]
    return tf.nest.pack_sequence_as(structure, leaves)


def operations(graph: Any) -> list[Any]:
    """All operations with an effect, in the order in which they were made.

    Each comes after its inputs: the gradient of a loop adds inputs to the loop, which is older.
    """
    ordered: list[Any] = []
    done: set[Any] = set()
    todo = list(reversed(graph.get_operations()))
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


def body_of(graph: Any, op: Any, name: str) -> Any:
    """The graph of a function that an operation calls; None if it is there as a definition only."""
    return getattr(function_of(graph, op.get_attr(name).name), "graph", None)


def on_variable(op: Any, inputs: Sequence[Any], values: dict[str, Any]) -> list[Any] | None:
    """What an operation on variables gives, of values by the name of the handle, and assigns there.

    Returns:
      None if the operation is not on a variable.

    Raises:
      NotImplementedError: it is, but nobody knows what it does.
    """
    kind = op.type
    if not any(t.dtype == tf.resource for t in op.inputs):
        return None
    if kind == "Identity":
        return list(inputs)
    name = inputs[0]
    if not isinstance(name, str):  # a table, say
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
    """One number is scattered to all elements of the rows that are named."""
    if updates.shape.rank != 0:
        return updates
    return tf.fill(tf.concat([tf.shape(indices), tf.shape(value)[1:]], 0), updates)
