"""Checks whether the functions of a `tf.data.Dataset` draw the same random numbers on all workers.

The check reads the graphs of the functions, so the answer is known before any data are read. It
cannot see random numbers that Python code draws (`tf.py_function`); see `batch_log.py` for these.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvd_elastic_keras.common.errors import DataError
from hvd_elastic_keras.keras_internals import dataset_parts
from hvd_elastic_keras.keras_internals.dataset_parts import functions_of
from hvd_elastic_keras.keras_internals.dataset_variables import KERAS_SEED
from hvd_elastic_keras.keras_internals.tensorflow_names import is_op_determinism_enabled
from hvd_elastic_keras.keras_internals.traced_graphs import nodes_of

SEEDED_OPS = frozenset(
    {
        *("RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal"),
        *("ParameterizedTruncatedNormal", "RandomGamma", "RandomPoisson", "RandomPoissonV2"),
        *("RandomShuffle", "Multinomial", "RandomCrop"),
        *("SampleDistortedBoundingBox", "SampleDistortedBoundingBoxV2"),
    }
)
"""Operations in which each call continues after the last one. Every iterator starts at the seed."""
GENERATOR_OPS = frozenset({"RngReadAndSkip", "RngSkip"})
"""Operations of `tf.random.Generator`, whose state outlives an iterator."""
ASSIGNMENTS = frozenset({"AssignVariableOp", "AssignAddVariableOp"})
STATELESS = (
    "draw from a seed of each element's own: tf.random.stateless_uniform(..., seed=[1, number]), "
    "tf.image.stateless_random_flip_left_right(..., seed=[1, number]), with its number from "
    "enumerate()"
)


def check_random_functions(part: tf.data.Dataset, name: str) -> None:
    """Raises `DataError` if a part of a dataset draws different numbers on different workers.

    Args:
      part: the part that one call of `map`, `interleave` and so on has added to a dataset.
      name: name of the data, for messages.
    """
    parallel, method = is_parallel(part), dataset_parts.method_of(part)
    for function in functions_of(part):
        graph = function.function.graph
        nodes = nodes_of(graph)
        if has_lasting_state(graph, nodes):
            raise DataError(
                f"{name} is a tf.data.Dataset with {method}(...) whose function draws from "
                "a keras.random.SeedGenerator or tf.random.Generator, as Keras's random layers do. "
                "Their state goes on from one pass over the data to the next, so that a worker "
                "that joins later draws other numbers. Put such layers into the model, or "
                f"{STATELESS}."
            )
        drawing = [node for node in nodes if node.op in SEEDED_OPS]
        for node in drawing:
            if not (node.attr["seed"].i or node.attr["seed2"].i):
                raise DataError(
                    f"{name} is a tf.data.Dataset with {method}(...) whose function draws "
                    f"random numbers ({node.op}) without any seed, so that they differ from worker "
                    "to worker. Call keras.utils.set_random_seed(1) before the dataset is made, or "
                    f"{STATELESS}."
                )
        if drawing and parallel:
            raise DataError(
                f"{name} is a tf.data.Dataset with {method}(..., num_parallel_calls=...) "
                f"whose function draws random numbers ({drawing[0].op}). Parallel calls take them "
                "in the order in which they happen to run, so that examples differ from worker to "
                "worker although all is seeded; deterministic=True keeps the order of the results "
                f"only. Leave num_parallel_calls out there, or {STATELESS}, or run with "
                "--deterministic."
            )


def has_lasting_state(graph: Any, nodes: list[Any]) -> bool:
    """Whether a function draws from a state that outlives an iterator.

    Args:
      nodes: all operations of its graph.
    """
    if any(node.op in GENERATOR_OPS for node in nodes):
        return True
    assigns = any(node.op in ASSIGNMENTS for node in nodes)
    return assigns and any(KERAS_SEED in variable.name for variable in graph.variables)


def is_parallel(part: tf.data.Dataset) -> bool:
    """Returns whether several calls of a part's function may run at the same time."""
    if is_op_determinism_enabled():
        return False  # tf.data then runs the calls one after the other
    return dataset_parts.is_parallel(part)
