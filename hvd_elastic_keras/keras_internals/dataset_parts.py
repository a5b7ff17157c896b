"""Reads the parts of a `tf.data.Dataset` and the arguments that these parts were given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import (
    batch_op,
    cache_op,
    dataset_ops,
    filter_op,
    interleave_op,
    map_op,
    padded_batch_op,
    repeat_op,
    shuffle_op,
    skip_op,
    take_op,
    zip_op,
)
from tensorflow.python.data.util import structure
from tensorflow.python.ops import gen_dataset_ops

from hvd_elastic_keras.keras_internals.traced_graphs import nodes_of

ATTRIBUTES = {
    shuffle_op._ShuffleDataset: (
        *("_buffer_size", "_seed", "_seed2", "_reshuffle_each_iteration", "_input_dataset"),
    ),
    map_op._MapDataset: ("_map_func", "_input_dataset", "_use_inter_op_parallelism"),
    map_op._ParallelMapDataset: ("_deterministic", "_num_parallel_calls", "_map_func"),
    batch_op._BatchDataset: ("_batch_size", "_drop_remainder", "_input_dataset"),
    repeat_op._RepeatDataset: ("_count", "_input_dataset"),
    skip_op._SkipDataset: ("_count", "_input_dataset"),
    take_op._TakeDataset: ("_count", "_input_dataset"),
    zip_op._ZipDataset: ("_datasets",),
    filter_op._FilterDataset: ("_predicate", "_input_dataset"),
    cache_op.CacheDataset: ("_filename", "_input_dataset"),
    padded_batch_op._PaddedBatchDataset: (
        *("_batch_size", "_padded_shapes", "_padding_values", "_drop_remainder"),
    ),
}
"""Attributes that the constructors set, and that are read or set here."""
CHOOSING = ("Repeat", "Take", "Skip", "Shard", "Filter", "AssertCardinality")
"""Kinds of datasets that give elements of their input; `cache` and `shuffle` do so, too."""
LOWERED = "_lower_using_switch_merge"
"""The attribute of branches and loops that TensorFlow replaces by `OF_LOWERED`."""
OF_LOWERED = ("Switch", "Merge", "Enter", "Exit", "NextIteration")
MOST_SERIALIZED_BYTES = 2**28
"""A dataset with more bytes of tensors than this is not serialized."""


def user_part(part: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the user's own part if a part takes its place."""
    return part._of if isinstance(part, _Remade) else part


def parts_of(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """Yields a dataset and all datasets that it is made of."""
    todo = [dataset]
    while todo:
        part = todo.pop()
        yield part
        todo += part._inputs()


def functions_of(part: tf.data.Dataset) -> Sequence[Any]:
    """Returns the functions that one call of `map`, `interleave` and so on added to a dataset."""
    return part._functions()  # type: ignore[no-any-return]


def next_functions_of_generators(dataset: tf.data.Dataset) -> Iterator[str]:
    """Yields the tokens of the Python functions that read from the generators of `from_generator`.

    Each is called with the number of an iterator.
    """
    for part in parts_of(dataset):
        for function in functions_of(part):
            definition = function.function.graph.as_graph_def()
            bodies = {f.signature.name: f.node_def for f in definition.library.function}
            for node in definition.node:
                if node.op == "GeneratorDataset":
                    called = bodies.get(node.attr["next_func"].func.name, ())
                    yield from (n.attr["token"].s.decode() for n in called if n.op == "PyFunc")


def reshuffles(part: tf.data.Dataset) -> bool:
    """Whether a part is a shuffle with another order for each iterator."""
    again = getattr(user_part(part), "_reshuffle_each_iteration", True)
    return is_shuffle(part) and bool(again)


def leaves_out_by_place(part: tf.data.Dataset) -> bool:
    """Whether a part gives only some elements of its input, chosen by their place in the order."""
    return any(word in type(part).__name__ for word in ("Take", "Skip", "Shard"))


def is_repeat(part: tf.data.Dataset) -> bool:
    """Whether a part reads its input again and again."""
    return "Repeat" in type(part).__name__


def is_unseeded_shuffle(part: tf.data.Dataset) -> bool:
    """Whether a part is a shuffle whose order cannot be reproduced."""
    seeds = [getattr(part, name, None) for name in ("_seed", "_seed2")]
    return is_shuffle(part) and all(s is not None and int(s) == 0 for s in seeds)


def need_not_keep_order(part: tf.data.Dataset) -> bool:
    """Whether a part was given `deterministic=False`."""
    return getattr(part, "_deterministic", None) in (False, "false")


def is_parallel(part: tf.data.Dataset) -> bool:
    """Whether a part's arguments allow several calls of its function at the same time."""
    calls = getattr(part, "_num_parallel_calls", None)
    count = 1 if calls is None else tf.get_static_value(calls)
    return "Parallel" in type(part).__name__ and count != 1


def missing_attributes() -> list[str]:
    """Returns the attributes read above that the installed TensorFlow lacks, as sentences.

    The names are read from the code of the constructors. Making a dataset here would initialise
    TensorFlow, and the user's script could no longer set threads or devices.
    """
    return [
        f"{kind.__name__} has no {name}"
        for kind, names in ATTRIBUTES.items()
        for name in names
        if name not in kind.__init__.__code__.co_names
    ]


def input_of(part: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the only dataset that a part is made of."""
    (found,) = part._inputs()
    return found


def is_map(part: tf.data.Dataset) -> bool:
    """Whether a part is a `map`."""
    return isinstance(part, map_op._MapDataset | map_op._ParallelMapDataset)


def is_cache(part: tf.data.Dataset) -> bool:
    """Whether a part keeps what it has read for the next passes."""
    return "Cache" in type(part).__name__


def caches_in_files(dataset: tf.data.Dataset) -> bool:
    """Whether a part of a dataset keeps what it has read in files."""
    names = (tf.get_static_value(p._filename) for p in parts_of(dataset) if is_cache(p))
    return any(names)


def cached_like(part: tf.data.Dataset, other: tf.data.Dataset) -> tf.data.Dataset:
    """Keeps the elements of another dataset as a `cache` does with those of its input."""
    return other.cache(part._filename)


def call_map(part: tf.data.Dataset, call: Callable[[Any, list[Any]], Any], element: Any) -> Any:
    """Returns what a `map` makes of one element.

    Args:
      call: receives the traced function and its tensors; returns a list of tensors.
    """
    function = part._map_func
    flat = structure.to_tensor_list(part._input_dataset.element_spec, element)
    found = call(function.function, flat)
    return structure.from_compatible_tensor_list(function.output_structure, list(found))


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


def passes_elements_on(part: tf.data.Dataset) -> bool:
    """Whether a part changes neither the elements nor their order: `prefetch`, options."""
    return type(part).__name__.strip("_") in ("PrefetchDataset", "OptionsDataset")


def zipped(part: tf.data.Dataset) -> Any:
    """Returns the structure of datasets that a part zips; None if it is no `zip`."""
    return part._datasets if isinstance(part, zip_op._ZipDataset) else None


def batch_of(part: tf.data.Dataset) -> tuple[int, bool] | None:
    """Returns batch size and `drop_remainder` of a `batch`; None for any other part."""
    if type(part).__name__.strip("_") not in ("BatchDataset", "ParallelBatchDataset"):
        return None
    return int(part._batch_size), bool(part._drop_remainder)


def pads_batches(part: tf.data.Dataset) -> bool:
    """Whether a part is a `padded_batch`."""
    return "PaddedBatch" in type(part).__name__


def only_chooses(part: tf.data.Dataset) -> bool:
    """Whether each element of a part is an element of its input."""
    kind = type(part).__name__.strip("_").removesuffix("Dataset")
    return is_cache(part) or is_shuffle(part) or kind in CHOOSING


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


def remade(part: tf.data.Dataset, other: tf.data.Dataset) -> tf.data.Dataset | None:
    """Does with another dataset, of elements of the same kind, what a part does with its input.

    Returns:
      The dataset; None if the part cannot be made again.
    """
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
    return _Remade(variant, other.element_spec, other, part)


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
    in_functions = (n for function in graph.library.function for n in function.node_def)
    free = [
        node
        for node in (*graph.node, *in_functions)
        if "deterministic" in node.attr and node.attr["deterministic"].s == b"false"
    ]
    if not free:
        return dataset
    for node in free:
        node.attr["deterministic"].s = b"true"
    root = _root_of(graph)
    (end,) = (node for node in graph.node if node.op == "_Retval")
    graph.node.remove(end)
    return _Remade(_imported(graph, root), dataset.element_spec, None, dataset)


class _Remade(dataset_ops._VariantDataset):  # type: ignore[misc]
    """A dataset that takes the place of a user's dataset, whose seed generators it uses.

    Args:
      below: the dataset it is made of; None if it takes the place of all parts of `of`.
      of: the user's dataset.
    """

    def __init__(
        self, variant: Any, element_spec: Any, below: tf.data.Dataset | None, of: tf.data.Dataset
    ) -> None:
        self._below = below
        self._of = of
        super().__init__(variant, element_spec)

    def _inputs(self) -> list[tf.data.Dataset]:
        return [] if self._below is None else [self._below]


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


def _imported(graph: Any, name: str) -> tf.Tensor:
    """Returns the value of a node of a serialized graph, also of a resource."""

    def value() -> tf.Tensor:
        (found,) = tf.graph_util.import_graph_def(graph, return_elements=[f"{name}:0"])
        return found

    return tf.function(value, autograph=False)()


def _bytes_below(part: tf.data.Dataset) -> int:
    """Returns the bytes of the tensors that a dataset is made of."""
    tensors = (t for p in parts_of(part) for t in getattr(p, "_tensors", ()))
    return sum(int(t.shape.num_elements() or 0) * (t.dtype.size or 16) for t in tensors)


def is_shuffle(part: tf.data.Dataset) -> bool:
    """Whether a part orders elements at random."""
    return "Shuffle" in type(user_part(part)).__name__
