"""The operations of a traced step, including operations of the functions that it calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hvd_elastic_keras.keras_internals.traced_graphs import PYTHON_CALLS


def nodes_of(graph: Any) -> list[Any]:
    """Returns all operations, as `NodeDef`s."""
    definition = graph.as_graph_def()
    return [*definition.node, *(n for f in definition.library.function for n in f.node_def)]


def calls_python(nodes: Iterable[Any]) -> bool:
    """Whether some operation runs Python code."""
    return any(node.op in PYTHON_CALLS for node in nodes)


def is_for_xla(op: Any) -> bool:
    """Whether an operation calls a function that XLA has to compile."""
    return any(name == "_XlaMustCompile" and op.get_attr(name) for name in op.node_def.attr)
