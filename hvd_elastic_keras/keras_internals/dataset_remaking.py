"""Makes parts of a `tf.data.Dataset` again, on another dataset or in another order.

The seeds of their shuffles come from the generators of the user's own dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import (
    filter_op,
    interleave_op,
    map_op,
    padded_batch_op,
    repeat_op,
    shuffle_op,
    skip_op,
    take_op,
)
from tensorflow.python.data.util import structure
from tensorflow.python.ops import gen_dataset_ops

from hvd_elastic_keras.keras_internals.dataset_parts import (
    Remade,
    batch_of,
    functions_of,
    need_not_keep_order,
    parts_of,
    passes_elements_on,
    reshuffles,
    user_part,
)
from hvd_elastic_keras.keras_internals.traced_graphs import nodes_of

LOWERED = "_lower_using_switch_merge"
"""The attribute of branches and loops that TensorFlow replaces by `OF_LOWERED`."""
OF_LOWERED = ("Switch", "Merge", "Enter", "Exit", "NextIteration")
WITHOUT_STATE = frozenset(
    (
        *("Concatenate", "DirectedInterleave", "FlatMap", "GroupByWindow", "IgnoreErrors"),
        *("Rebatch", "Scan", "Shard", "TakeWhile", "Unbatch", "Unique", "Window"),
    )
)
"""Kinds of datasets that depend on their inputs and arguments only. They are made again from their
nodes in the serialized dataset."""
OF_CHANCE = (
    *("Generator", "Multinomial", "PyFunc", "Random", "Shuffle", "TruncatedNormal"),
    *("StatefulStandard", "StatefulUniform"),
)
"""Parts of the names of operations that may do something else each time."""
MOST_SERIALIZED_BYTES = 2**28
"""A dataset with more bytes of tensors than this is not serialized."""


def cached_like(part: tf.data.Dataset, other: tf.data.Dataset) -> tf.data.Dataset:
    """Keeps the elements of another dataset as a `cache` does with those of its input."""
    return other.cache(part._filename)


def mapped_in_one_thread(dataset: tf.data.Dataset, function: Callable[..., Any]) -> tf.data.Dataset:
    """Returns `dataset.map(function)`, whose operations run in the thread that reads it.

    Otherwise each call is handed to another thread. For short functions, this takes longer than the
    function itself. Functions with branches, loops or devices have to be handed over: TensorFlow
    turns these into operations that its executor for one thread does not have.
    """
    function = tf.autograph.experimental.do_not_convert(function)
    found = map_op._MapDataset(dataset, function, use_inter_op_parallelism=False)
    if any(map(_needs_threads, nodes_of(found._map_func.function.graph))):
        return dataset.map(function)
    return found


def _needs_threads(node: Any) -> bool:
    is_lowered = LOWERED in node.attr and node.attr[LOWERED].b
    return is_lowered or node.op in OF_LOWERED or bool(node.device)


def chosen_like(part: tf.data.Dataset, other: tf.data.Dataset) -> tf.data.Dataset | None:
    """Chooses and orders the elements of another dataset as a part does with those of its input.

    Returns:
      The dataset; None if the part does something else, or cannot be made again.
    """
    part = user_part(part)
    if isinstance(part, repeat_op._RepeatDataset):
        return other.repeat(part._count)
    if isinstance(part, take_op._TakeDataset):
        return other.take(part._count)
    if isinstance(part, skip_op._SkipDataset):
        return other.skip(part._count)
    if type(part).__name__.strip("_") == "AssertCardinalityDataset":
        return other.apply(tf.data.experimental.assert_cardinality(int(part.cardinality())))
    if isinstance(part, shuffle_op._ShuffleDataset):
        return shuffled_like(part, other)
    return None


def remade_of(
    part: tf.data.Dataset, others: Sequence[tf.data.Dataset], kept: dict[int, Any]
) -> tf.data.Dataset | None:
    """Does with other datasets, of elements of the same kind, what a part does with its inputs.

    Args:
      kept: the serialized nodes of parts, by the ids of the parts. They are added here.

    Returns:
      The dataset; None if the part cannot be made again.
    """
    kind = type(part).__name__.strip("_").removesuffix("Dataset")
    if kind == "Restructured":  # the same tensors in another structure
        return Remade(others[0]._variant_tensor, part.element_spec, others, part)
    if kind not in WITHOUT_STATE:
        return _remade(part, others[0]) if len(others) == 1 else None
    if id(part) not in kept:
        kept[id(part)] = _nodes_above_inputs(part, len(others))
    if kept[id(part)] is None:
        return None
    graph, root, inputs = kept[id(part)]
    variants = [other._variant_tensor for other in others]
    return Remade(_imported(graph, root, inputs, variants), part.element_spec, others, part)


def _nodes_above_inputs(
    part: tf.data.Dataset, num_inputs: int
) -> tuple[Any, str, list[str]] | None:
    """Returns a serialized part without its inputs, its node's name, and those of its inputs.

    Returns None if its functions draw or shuffle: that could differ from worker to worker.
    """
    nodes = (n for function in functions_of(part) for n in nodes_of(function.function.graph))
    if any(word in node.op for node in nodes for word in OF_CHANCE):
        return None
    graph = _serialized(part)
    if graph is None:
        return None
    root = _pop_root(graph)
    known = {node.name: node for node in graph.node}
    inputs = list(known[root].input[:num_inputs])
    needed: set[str] = set()
    todo = [root]
    while todo:
        name = todo.pop()
        if name not in needed and name not in inputs:
            needed.add(name)
            todo += [word.lstrip("^").partition(":")[0] for word in known[name].input]
    for name, node in known.items():
        if name not in needed:
            graph.node.remove(node)
    _keep_order(graph)
    return graph, root, inputs


def _remade(part: tf.data.Dataset, other: tf.data.Dataset) -> tf.data.Dataset | None:
    if passes_elements_on(part):
        return other.prefetch(tf.data.AUTOTUNE)
    if batch := batch_of(part):
        size, drop_remainder = batch
        return other.batch(size, drop_remainder=drop_remainder)
    if isinstance(part, padded_batch_op._PaddedBatchDataset):
        return other.padded_batch(
            part._batch_size, part._padded_shapes, part._padding_values, part._drop_remainder
        )
    if isinstance(part, filter_op._FilterDataset):
        spec, predicate = other.element_spec, part._predicate.function

        def holds(*arguments: Any) -> Any:
            element = arguments if type(spec) is tuple else arguments[0]
            (found,) = tf.nest.flatten(predicate(*structure.to_tensor_list(spec, element)))
            return found

        return other.filter(holds)
    return chosen_like(part, other)


def shuffled_like(part: tf.data.Dataset, other: tf.data.Dataset) -> tf.data.Dataset | None:
    """Shuffles another dataset as a `shuffle` does.

    Both take their seeds in turn from one generator, which the user's own iterators may have used
    before. Only the serialized dataset names this generator.

    Returns:
      The dataset; None if the shuffle cannot be serialized.
    """
    graph = _serialized(part)
    if graph is None:
        return None
    nodes = {node.name: node for node in graph.node}
    shuffle = nodes[_root_of(graph)]
    generator = nodes[shuffle.input[-1]] if shuffle.op == "ShuffleDatasetV3" else None
    if generator is None or generator.op != "Const":
        return None
    constant = tf.compat.v1.GraphDef()
    constant.node.append(generator)
    variant = gen_dataset_ops.shuffle_dataset_v3(
        other._variant_tensor,
        buffer_size=part._buffer_size,
        seed=part._seed,
        seed2=part._seed2,
        seed_generator=_imported(constant, generator.name),
        reshuffle_each_iteration=reshuffles(part),
        **other._flat_structure,
    )
    return Remade(variant, other.element_spec, [other], part)


def in_order(dataset: tf.data.Dataset) -> tf.data.Dataset | None:
    """Returns a dataset whose elements come in the same order each time, `deterministic=False` or
    not.

    It takes the seeds of its shuffles from the generators of the user's dataset.

    Returns:
      The dataset itself if its order is kept anyway; None if it cannot be serialized.
    """
    if not any(_may_leave_order(part) for part in parts_of(dataset)):
        return dataset
    graph = _serialized(dataset)
    if graph is None:
        return None
    if not _keep_order(graph):
        return dataset
    return Remade(_imported(graph, _pop_root(graph)), dataset.element_spec, (), dataset)


def _may_leave_order(part: tf.data.Dataset) -> bool:
    """Whether a part may have been given `deterministic=False`; `interleave` does not keep it."""
    return need_not_keep_order(part) or isinstance(part, interleave_op._ParallelInterleaveDataset)


def _serialized(dataset: tf.data.Dataset) -> Any:
    """Returns the graph of a dataset; None if it is too large or cannot be serialized."""
    if _bytes_below(dataset) > MOST_SERIALIZED_BYTES:
        return None
    policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    try:
        text = dataset._as_serialized_graph(external_state_policy=policy).numpy()
    except tf.errors.OpError:
        return None
    return tf.compat.v1.GraphDef.FromString(text)


def _root_of(graph: Any) -> str:
    """Returns the name of the node that makes the dataset of a serialized graph."""
    (end,) = (node for node in graph.node if node.op == "_Retval")
    return str(end.input[0])


def _keep_order(graph: Any) -> bool:
    """Lets operations give their elements in order. Returns whether one did not have to."""
    in_functions = (n for function in graph.library.function for n in function.node_def)
    free = [
        node
        for node in (*graph.node, *in_functions)
        if "deterministic" in node.attr and node.attr["deterministic"].s == b"false"
    ]
    for node in free:
        node.attr["deterministic"].s = b"true"
    return bool(free)


def _pop_root(graph: Any) -> str:
    """Removes the node that returns the dataset; returns the name of the one that makes it."""
    root = _root_of(graph)
    (end,) = (node for node in graph.node if node.op == "_Retval")
    graph.node.remove(end)
    return root


def _imported(
    graph: Any, name: str, inputs: Sequence[str] = (), given: Sequence[tf.Tensor] = ()
) -> tf.Tensor:
    """Returns the value of a node of a serialized graph, also of a resource.

    Args:
      inputs: the names of nodes in whose place tensors are `given`.
    """

    def value(*tensors: tf.Tensor) -> tf.Tensor:
        instead = {f"{node}:0": tensor for node, tensor in zip(inputs, tensors, strict=True)}
        (found,) = tf.graph_util.import_graph_def(graph, instead, return_elements=[f"{name}:0"])
        return found

    # Called as a concrete function, which TensorFlow does not suspect of being traced too often.
    specs = [tf.TensorSpec.from_tensor(tensor) for tensor in given]
    return tf.function(value, autograph=False).get_concrete_function(*specs)(*given)


def _bytes_below(part: tf.data.Dataset) -> int:
    """Returns the bytes of the tensors that a dataset is made of."""
    tensors = (t for p in parts_of(part) for t in getattr(p, "_tensors", ()))
    return sum(int(t.shape.num_elements() or 0) * (t.dtype.size or 16) for t in tensors)
