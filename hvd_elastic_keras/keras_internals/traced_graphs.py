"""Works on traced graphs: inlines functions, adds operations again, and calls a graph directly.

`inlined_functions` traces the user's `tf.function`s as a part of the step, not as functions of
their own. `emit` adds an operation of a traced graph again, with other inputs, or runs it eagerly.

`directly` saves time at each call: `tf.function` inspects its arguments to find the graph that was
traced for arguments of that kind. This takes about as long as a step of a small model. A function
with an input signature has only one graph, so that nothing has to be found.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import script_ops

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.common.patches import replaced
from hvd_elastic_keras.keras_internals.tensorflow_names import (
    DefinedFunction,
    PolymorphicFunction,
    ag_ctx,
    eager_context,
    execute,
    get_default_graph,
    py_func_from_autograph,
    tensor_util,
)

PYTHON_CALLS = frozenset({"EagerPyFunc", "PyFunc", "PyFuncStateless"})
"""The operations of `tf.py_function` and `tf.numpy_function`."""
LOOPS = ("While", "StatelessWhile")
FUNCTIONS = {
    **dict.fromkeys(LOOPS, ("body", "cond")),
    **dict.fromkeys(("If", "StatelessIf"), ("then_branch", "else_branch")),
    **dict.fromkeys(("PartitionedCall", "StatefulPartitionedCall"), ("f",)),
}
"""Operations that call functions, and the attributes that name these functions."""


def emit(op: Any, inputs: list[Any]) -> list[Any]:
    """Returns an operation's outputs for these inputs, in the graph that is being made or eagerly.

    Raises:
      ValueError: in a graph, if the shapes do not fit.
      tf.errors.OpError: eagerly, if the operation fails.
    """
    if tf.executing_eagerly():
        if has_functions(op):
            _register_functions(op)
        if op.type == "Const":
            return [tf.constant(tensor_util.MakeNdarray(op.get_attr("value")))]
        attributes = [x for a in op.op_def.attr for x in (a.name, _plain(op.get_attr(a.name)))]
        count = len(op.outputs)
        return list(execute(op.type, count, list(inputs), tuple(attributes), eager_context()))
    return list(emit_operation(op, inputs).outputs)


def emit_by_xla(op: Any, inputs: list[Any]) -> list[Any]:
    """As `emit`, compiled by XLA."""
    compiled = tf.function(lambda *given: emit(op, list(given)), jit_compile=True, autograph=False)
    return list(compiled(*inputs))


def emit_operation(op: Any, inputs: list[Any]) -> Any:
    """Adds the same operation for these inputs to the graph that is being made.

    Raises:
      ValueError: the shapes do not fit.
    """
    node = op.node_def  # TensorFlow makes it anew at each access
    if _names_functions(node):
        _register_functions(op)
    attributes = {k: v for k, v in node.attr.items() if not k.startswith("_")}
    dtypes = [t.dtype for t in op.outputs]
    return get_default_graph()._create_op_internal(op.type, inputs, dtypes, attrs=attributes)


def has_functions(op: Any) -> bool:
    """Whether an operation calls functions of the graph."""
    return _names_functions(op.node_def)


def _names_functions(node: Any) -> bool:
    return any(a.HasField("func") for a in node.attr.values())


def function_of(graph: Any, name: str) -> Any:
    """Returns a function of a graph, or of a graph around it.

    Raises:
      LookupError: no graph has the function.
    """
    while graph is not None:
        if name in graph._functions:
            return graph._functions[name]
        graph = getattr(graph, "outer_graph", None)
    raise LookupError(name)


def body_of(graph: Any, op: Any, name: str) -> Any:
    """Returns the graph of a function that an operation calls; None if it has only a definition."""
    return getattr(function_of(graph, op.get_attr(name).name), "graph", None)


def nodes_of(graph: Any) -> list[Any]:
    """Returns all operations, as `NodeDef`s."""
    definition = graph.as_graph_def()
    return [*definition.node, *(n for f in definition.library.function for n in f.node_def)]


def calls_python(nodes: Iterable[Any]) -> bool:
    """Whether some operation runs Python code."""
    return any(node.op in PYTHON_CALLS for node in nodes)


def function_called_by(op: Any) -> Callable[..., Any]:
    """Returns the user's function that one of `PYTHON_CALLS` calls."""
    found = function_of_token(op.get_attr("token").decode())
    function: Callable[..., Any] = getattr(found, "_func", found)
    return function


def function_of_token(token: str) -> Any:
    """Returns what TensorFlow calls for a Python operation that has this token."""
    found = script_ops._py_funcs.get(token)
    if found is None:
        raise ValueError(f"the Python function {token} is gone")
    return found


def replace_function_of_token(token: str, function: Any) -> None:
    """Makes TensorFlow call another function, of which it keeps no reference."""
    script_ops._py_funcs._funcs[token] = function


def nodes_within(op: Any) -> Iterator[Any]:
    """Yields an operation and the operations of all functions that it calls, as `NodeDef`s."""
    seen: set[str] = set()
    todo = [op.node_def]
    while todo:
        node = todo.pop()
        yield node
        called = [a.func.name for a in node.attr.values() if a.HasField("func")]
        called += [f.name for a in node.attr.values() for f in a.list.func]
        for name in called:
            if name not in seen:
                seen.add(name)
                todo += _definition(op.graph, name).node_def


def _definition(graph: Any, name: str) -> Any:
    try:
        return function_of(graph, name).definition
    except LookupError:  # a graph has only functions that its operations call directly
        return eager_context().get_function_def(name)


def _register_functions(op: Any) -> None:
    """Makes the functions known to the graph that is being made, or to the eager runtime."""
    for attribute in op.node_def.attr.values():
        if attribute.HasField("func"):
            function = function_of(op.graph, attribute.func.name)
            if not tf.executing_eagerly():
                get_default_graph()._add_function_recursive(function)
            else:
                _register_eagerly(function)


def _register_eagerly(function: Any) -> None:
    """Registers functions of the oldest kind. Other kinds are known since they were made."""
    if isinstance(function, DefinedFunction):
        eager_context().add_function_def(function.definition)
        for inner in function._sub_functions.values():
            _register_eagerly(inner)


def _plain(value: Any) -> Any:
    """Converts an attribute to the form that the eager runtime takes."""
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, tf.DType):
        return value.as_datatype_enum
    if type(value).__name__ == "TensorShapeProto":
        return tf.TensorShape(value)
    return value


@contextlib.contextmanager
def inlined_functions(*, xla_too: bool = False) -> Iterator[None]:
    """Calls the Python code of each `tf.function`, converted by AutoGraph as usual.

    Functions for XLA stay as they are: Keras has them for operations that a CPU cannot do without
    XLA, such as convolutions in groups.

    Only calls in the present thread change. Each call traces the code anew: no earlier trace is
    used.

    Args:
      xla_too: whether to call the code of functions for XLA, too. What is traced cannot be run.
    """

    def inlined(original: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
        if function._jit_compile and not xla_too:
            return original(function, *args, **kwargs)
        options = function._experimental_autograph_options
        code, status = function.python_function, ag_ctx.Status.DISABLED
        if function._autograph:
            code, status = py_func_from_autograph(code, options), ag_ctx.Status.ENABLED
        try:
            with ag_ctx.ControlStatusCtx(status=status, options=options):
                return code(*args, **kwargs)
        except Exception as error:
            if refusal := _refusal_within(error):
                raise refusal from None
            raise

    with replaced(PolymorphicFunction, "__call__", inlined):
        yield


def _refusal_within(error: BaseException | None) -> ConfigurationError | None:
    """Returns the error raised first. AutoGraph raises another one, with the user's lines."""
    while error is not None:
        if isinstance(error, ConfigurationError):
            return error
        error = error.__context__
    return None


def directly(function: Any) -> Callable[..., Any]:
    """Returns a function that calls the graph of a `tf.function` with an input signature.

    The graph is traced at the first call, as it is by `tf.function`.
    """
    graph = functools.cache(function.get_concrete_function)

    def call(*arguments: Any) -> Any:
        if tf.config.functions_run_eagerly():  # somebody is debugging
            return function(*arguments)
        return graph()(*arguments)

    return call
