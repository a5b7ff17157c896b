"""Random numbers in the maps of a `tf.data.Dataset`: the same on all workers, in any order.

TensorFlow's `tf.random` operations, `tf.random.Generator` and `keras.random.SeedGenerator` draw
numbers that depend on all earlier calls. Parallel calls run in any order, and a worker that joins
later has not made the earlier ones. Here, each operation draws from a seed of its own that follows
from the pass and the number of the element (its key), as `tf.random.stateless_*` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_elastic_keras.data.sources.global_draws import SeededFunction
from hvd_elastic_keras.data.sources.random_ops import (
    ASSIGNMENTS,
    GENERATOR_OPS,
    SEEDED_OPS,
    has_lasting_state,
    is_parallel,
)
from hvd_elastic_keras.keras_internals import dataset_parts
from hvd_elastic_keras.keras_internals.dataset_variables import holds_seed
from hvd_elastic_keras.keras_internals.global_seed import order_is_free
from hvd_elastic_keras.keras_internals.stateless_draws import StatelessDraws, mixed
from hvd_elastic_keras.keras_internals.tensorflow_names import DEFAULT_GRAPH_SEED, op_def_registry
from hvd_elastic_keras.keras_internals.traced_graphs import (
    FUNCTIONS,
    PYTHON_CALLS,
    body_of,
    calls_python,
    emit_operation,
    function_called_by,
    has_functions,
    nodes_of,
    nodes_within,
)

TOLD = (
    "random numbers that Python code in map(...) draws from Python or NumPy follow from the number "
    "of each element. They are the same for any number of workers, but not those of plain fit."
)
KEY = tf.TensorSpec([2], tf.int64)
"""The key of an element: the number of the pass, and the number of the element in the pass."""
READ = "RngReadAndSkip"
AGAIN = frozenset(StatelessDraws.METHODS)
"""Operations that can draw from a given seed."""
HARMLESS = frozenset(
    {
        *("ReadVariableOp", "VarHandleOp", "VariableShape", "Assert", "PrintV2"),
        *("StatefulPartitionedCall", "If", "Case", "While"),
        *("LookupTableFindV2", "LookupTableSizeV2", "HashTableV2"),
    }
)
"""Operations that TensorFlow calls stateful, but whose results do not depend on earlier calls."""


def reason_to_stay(part: tf.data.Dataset) -> str:
    """Returns why the function of a `map` has to be called for all elements, in their order.

    A function that draws seeded numbers, one call after the other, is such a function: its numbers
    are those of plain Keras only if all calls are made.

    Returns:
      The reason, in words that follow "it"; empty if it may be called for any elements.
    """
    (function,) = dataset_parts.functions_of(part)
    graph = function.function.graph
    captured = [outer for outer, _ in graph.captures]
    if not all(isinstance(outer, tf.__internal__.EagerTensor) for outer in captured):
        return "was made within another function"
    nodes = nodes_of(graph)
    if any(map(_draws, nodes)) and not draws_by_call(part):
        return "draws seeded random numbers, one call after the other"
    if calls_python(nodes) and not is_parallel(part):
        return "calls Python code without num_parallel_calls, so that all calls have an order"
    return "" if can_draw_by_key(part) else "has a state that earlier calls change"


def can_draw_by_key(part: tf.data.Dataset) -> bool:
    """Whether `called_with_key` can call the function of a `map`."""
    (function,) = dataset_parts.functions_of(part)
    graph = function.function.graph
    return _can_be_called(graph, _seed_handles(graph), within_branch=False)


def draws_numbers(part: tf.data.Dataset) -> bool:
    """Whether the function of a `map` draws random numbers that would depend on earlier calls."""
    (function,) = dataset_parts.functions_of(part)
    graph = function.function.graph
    nodes = nodes_of(graph)
    return has_lasting_state(graph, nodes) or any(map(_draws, nodes))


def draws_by_call(part: tf.data.Dataset) -> bool:
    """Whether the numbers that a `map` draws differ from worker to worker, or from run to run.

    They do not if all draws are seeded, the calls are made one after the other, and every iterator
    starts anew at the seed. Python code may always draw such numbers.
    """
    if not dataset_parts.is_map(part):
        return False
    (function,) = dataset_parts.functions_of(part)
    graph = function.function.graph
    nodes = nodes_of(graph)
    draws = [node for node in nodes if node.op in SEEDED_OPS]
    if has_lasting_state(graph, nodes) or calls_python(nodes):
        return True
    return bool(draws) and (is_parallel(part) or not all(_is_seeded(n, len(draws)) for n in draws))


def calls_python_only(part: tf.data.Dataset) -> bool:
    """Whether only Python code may draw numbers in a `map`: then it is unknown whether it does."""
    (function,) = dataset_parts.functions_of(part)
    graph = function.function.graph
    nodes = nodes_of(graph)
    return calls_python(nodes) and not (has_lasting_state(graph, nodes) or any(map(_draws, nodes)))


def _is_seeded(node: Any, count: int) -> bool:
    """Whether the user has seeded an operation, one of `count` in its function.

    Without a seed of its own, TensorFlow numbers the operations of a graph in place of a seed.
    """
    number, own = node.attr["seed"].i, node.attr["seed2"].i
    if order_is_free() and number == DEFAULT_GRAPH_SEED:
        return bool(own >= count)
    return bool(number or own)


def called_with_key(
    function: Any,
    tensors: Sequence[tf.Tensor],
    key: tf.Tensor,
    seed: int,
    *,
    of_own_rows: bool = False,
) -> list[Any]:
    """Calls the traced function of a `map`; random numbers follow from a key.

    Args:
      tensors: the tensors of an element.
      key: see `KEY`.
      seed: another number for each function.
      of_own_rows: whether each worker calls it for other elements. Python code must then keep no
        state from call to call.
    """
    graph = function.graph
    nodes = nodes_of(graph)
    if not (has_lasting_state(graph, nodes) or any(map(_needs_key, nodes))):
        return list(tf.nest.flatten(function(*tensors)))
    handles = _seed_handles(graph)
    captured = [handles.get(inner.name, outer) for outer, inner in graph.captures]
    call = _KeyedCall(key, seed, graph, of_own_rows=of_own_rows)
    return call.run(graph, [*tensors, *captured])


def _python_call(
    op: Any, seed: tf.Tensor, inputs: Sequence[Any], *, keeps_no_state: bool
) -> list[Any]:
    """Adds a call of the Python function of a `py_function` or `numpy_function`, which is seeded.

    Args:
      op: the traced operation.
      seed: shape [2], int64.
      keeps_no_state: whether to refuse a function that keeps a state.
    """
    function = SeededFunction(function_called_by(op), TOLD, keeps_no_state=keeps_no_state)
    types = [output.dtype for output in op.outputs]

    def call(numbers: Any, *arguments: Any) -> Any:
        first, second = (int(n) for n in np.asarray(numbers))
        return function(mixed(first, second), *arguments)

    convert = tf.py_function if op.type == "EagerPyFunc" else tf.numpy_function
    return list(tf.nest.flatten(convert(call, [seed, *inputs], types)))


class _KeyedCall:
    """One call of a function. Its operations are added to the graph that is being made."""

    def __init__(self, key: tf.Tensor, seed: int, graph: Any, *, of_own_rows: bool) -> None:
        self._of_own_rows = of_own_rows
        self._key = key * tf.constant([1_000_003, 1], tf.int64)
        self._seed = seed
        self._ordinal = 0
        self._draws = StatelessDraws(self._next_seed)
        self._states = {name: self._next_seed(name, 0, 0) for name in _seed_handles(graph).values()}
        """The states of seed generators, by the names of their variables."""

    def run(self, graph: Any, inputs: Sequence[Any]) -> list[Any]:
        """Returns the outputs of a graph. An input is a tensor, or the name of a state."""
        values = dict(zip((t.name for t in graph.inputs), inputs, strict=True))
        done: dict[str, Any] = {}
        for op in graph.get_operations():
            if op.type == "Placeholder":
                continue
            given = [values[t.name] for t in op.inputs]
            before = [done[o.name] for o in op.control_inputs if o.name in done]
            with tf.control_dependencies(before):
                outputs = self._outputs(op, given)
            for old, new in zip(op.outputs, outputs, strict=True):
                values[old.name] = new
                if isinstance(new, tf.Tensor):
                    new.set_shape(old.shape)
            if outputs and isinstance(outputs[0], tf.Tensor):
                done[op.name] = outputs[0].op
        return [values[t.name] for t in graph.outputs]

    def _outputs(self, op: Any, inputs: list[Any]) -> list[Any]:
        kind = op.type
        if kind in AGAIN:
            return [self._draws.again(op, inputs)]
        if kind in PYTHON_CALLS:
            called = self._next_seed(kind, 0, 0)
            return _python_call(op, called, inputs, keeps_no_state=self._of_own_rows)
        if inputs and isinstance(inputs[0], str):
            found = self._of_state(op, inputs)
            if found is not None:
                return found
        if has_functions(op) and any(map(_needs_key, nodes_within(op))):
            bodies = _bodies(op)
            if len(bodies) == 1:
                return self.run(bodies[0], inputs)
            (then, other), (choice, *rest) = bodies, inputs
            found = tf.cond(choice, lambda: self.run(then, rest), lambda: self.run(other, rest))
            return list(tf.nest.flatten(found))
        return list(emit_operation(op, inputs).outputs)

    def _of_state(self, op: Any, inputs: list[Any]) -> list[Any] | None:
        name, *others = inputs
        if op.type == "Identity":
            return [name]
        if op.type == "ReadVariableOp":
            return [self._states[name]]
        if op.type == READ:
            seed = self._next_seed(name, 0, 0)
            return [tf.stack([tf.zeros([], tf.int64), seed[1], seed[0]])]
        if op.type == "AssignVariableOp":
            self._states[name] = others[0]
            return []
        if op.type == "AssignAddVariableOp":
            self._states[name] += others[0]
            return []
        return None

    def _next_seed(self, name: str, seed: int, seed2: int) -> tf.Tensor:
        self._ordinal += 1
        number = mixed(self._seed, seed, seed2, self._ordinal)
        return self._key + tf.constant([number, 0], tf.int64)


def _can_be_called(graph: Any, handles: dict[str, str], *, within_branch: bool) -> bool:
    states = set(handles)
    for op in graph.get_operations():
        on_state = any(t.name in states for t in op.inputs)
        if on_state:
            if within_branch or op.type not in (*ASSIGNMENTS, READ, "ReadVariableOp", "Identity"):
                return False
            states |= {t.name for t in op.outputs if op.type == "Identity"}
        elif op.type in AGAIN or op.type in PYTHON_CALLS:
            continue
        elif has_functions(op) and any(map(_needs_key, nodes_within(op))):
            bodies = _bodies(op)
            within = within_branch or len(bodies) > 1
            if not bodies or None in bodies:
                return False
            if not all(_can_be_called(body, {}, within_branch=within) for body in bodies):
                return False
        elif not all(map(_is_harmless, nodes_within(op))):
            return False
    return True


def _bodies(op: Any) -> list[Any]:
    """Returns the graphs of a called function or of both branches; nothing for a loop."""
    names = FUNCTIONS.get(op.type, ())
    return [] if "body" in names else [body_of(op.graph, op, name) for name in names]


def _is_harmless(node: Any) -> bool:
    if node.op in PYTHON_CALLS or _draws(node):
        return False
    definition = op_def_registry.get(node.op)
    return node.op in HARMLESS or (definition is not None and not definition.is_stateful)


def _needs_key(node: Any) -> bool:
    return _draws(node) or node.op in PYTHON_CALLS


def _draws(node: Any) -> bool:
    return node.op in SEEDED_OPS or node.op in GENERATOR_OPS


def _seed_handles(graph: Any) -> dict[str, str]:
    """Returns the names of the variables that hold seeds, by the names of their placeholders."""
    seeds = {id(v.handle): v.name for v in graph.variables if holds_seed(v)}
    return {
        inner.name: f"{seeds[id(outer)]} {inner.name}"
        for outer, inner in graph.captures
        if id(outer) in seeds
    }
