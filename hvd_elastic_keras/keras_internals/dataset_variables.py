"""Finds the variables that functions of a `tf.data.Dataset` read."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from hvd_elastic_keras.keras_internals.dataset_parts import functions_of, parts_of
from hvd_elastic_keras.keras_internals.traced_graphs import nodes_of

ASSIGNS = ("Assign", "ResourceScatter", "ResourceStridedSliceAssign")
"""Begin the names of operations that change a variable. `ScatterNd` and its like do not."""
KERAS_SEED = "seed_generator"
"""A part of the names of the variables of `keras.random.SeedGenerator`."""


def holds_seed(variable: tf.Variable) -> bool:
    """Whether a variable is the state of a random generator."""
    return KERAS_SEED in variable.name or variable.name.startswith("StateVar")


def variables_read(data: Iterable[object]) -> list[tf.Variable]:
    """Returns the variables that functions of datasets read and do not change, each once.

    A callback may change them, such as one that raises the strength of an augmentation. They are in
    the same order in all workers that make the same datasets. The states of random generators are
    left out: a worker draws by its own copies.

    Args:
      data: datasets; other objects are passed over.
    """
    graphs = [
        function.function.graph
        for dataset in data
        if isinstance(dataset, tf.data.Dataset)
        for part in parts_of(dataset)
        for function in functions_of(part)
    ]
    found = [
        variable
        for graph in graphs
        if not any(node.op.startswith(ASSIGNS) for node in nodes_of(graph))
        for variable in graph.variables
        if not holds_seed(variable)
    ]
    return list({id(variable): variable for variable in found}.values())
