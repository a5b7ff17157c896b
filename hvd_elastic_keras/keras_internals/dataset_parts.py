"""Reads the parts of a `tf.data.Dataset` and the arguments that these parts were given."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import (
    batch_op,
    cache_op,
    dataset_ops,
    filter_op,
    map_op,
    padded_batch_op,
    prefetch_op,
    repeat_op,
    shuffle_op,
    skip_op,
    take_op,
    zip_op,
)
from tensorflow.python.data.util import structure

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
    prefetch_op._PrefetchDataset: ("_buffer_size", "_input_dataset"),
    filter_op._FilterDataset: ("_predicate", "_input_dataset"),
    cache_op.CacheDataset: ("_filename", "_input_dataset"),
    padded_batch_op._PaddedBatchDataset: (
        *("_batch_size", "_padded_shapes", "_padding_values", "_drop_remainder"),
    ),
}
"""Attributes that the constructors set, and that this package reads or sets."""
CHOOSING = ("Repeat", "Take", "Skip", "Shard", "Filter", "AssertCardinality")
"""Kinds of datasets that give elements of their input; `cache` and `shuffle` do so, too."""


def user_part(part: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the user's own part if a part takes its place."""
    return part._of if isinstance(part, Remade) else part


def parts_of(dataset: tf.data.Dataset, without: Container[int] = ()) -> Iterator[tf.data.Dataset]:
    """Yields a dataset and all datasets that it is made of.

    Args:
      without: ids of datasets that are left out, with all that they are made of.
    """
    todo = [dataset]
    while todo:
        part = todo.pop()
        if id(part) in without:
            continue
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
    draws = is_shuffle(part) or "RandomDataset" in type(part).__name__
    return draws and all(s is not None and int(s) == 0 for s in seeds)


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


def call_map(part: tf.data.Dataset, call: Callable[[Any, list[Any]], Any], element: Any) -> Any:
    """Returns what a `map` makes of one element.

    Args:
      call: receives the traced function and its tensors; returns a list of tensors.
    """
    function = part._map_func
    flat = structure.to_tensor_list(part._input_dataset.element_spec, element)
    found = call(function.function, flat)
    return structure.from_compatible_tensor_list(function.output_structure, list(found))


def passes_elements_on(part: tf.data.Dataset) -> bool:
    """Whether a part changes neither the elements nor their order: `prefetch`, options."""
    return type(part).__name__.strip("_") in ("PrefetchDataset", "OptionsDataset")


def prefetched(part: tf.data.Dataset) -> int:
    """Returns how many elements a `prefetch` reads ahead at least; 0 for any other part."""
    size = int(getattr(part, "_buffer_size", 0)) if passes_elements_on(part) else 0
    return 1 if size == tf.data.AUTOTUNE else size


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


def lets_maps_pass(part: tf.data.Dataset) -> bool:
    """Whether a part does not look at elements: a map below it may as well be above it."""
    kind = type(part).__name__.strip("_").removesuffix("Dataset")
    known = kind in ("Repeat", "Take", "Skip", "AssertCardinality", "Zip")
    return known or is_shuffle(part) or passes_elements_on(part) or batch_of(part) is not None


def method_of(part: tf.data.Dataset) -> str:
    """Returns the name of the method of `tf.data.Dataset` that has made a part."""
    kind = type(part).__name__.strip("_").removesuffix("V2").removesuffix("Dataset")
    words = re.findall("[A-Z][a-z]*", kind.removeprefix("Parallel"))
    name = "_".join(words).lower()
    return {"directed_interleave": "sample_from_datasets"}.get(name, name)


def only_chooses(part: tf.data.Dataset) -> bool:
    """Whether each element of a part is an element of its input."""
    kind = type(part).__name__.strip("_").removesuffix("Dataset")
    return is_cache(part) or is_shuffle(part) or kind in CHOOSING


class Remade(dataset_ops._VariantDataset):  # type: ignore[misc]
    """A dataset that takes the place of a user's dataset, whose seed generators it uses.

    Args:
      below: the datasets it is made of; none if it takes the place of all parts of `of`.
      of: the user's dataset.
    """

    def __init__(
        self,
        variant: Any,
        element_spec: Any,
        below: Sequence[tf.data.Dataset],
        of: tf.data.Dataset,
    ) -> None:
        self._below = below
        self._of = of
        super().__init__(variant, element_spec)

    def _inputs(self) -> list[tf.data.Dataset]:
        return list(self._below)


def is_shuffle(part: tf.data.Dataset) -> bool:
    """Whether a part orders elements at random."""
    return "Shuffle" in type(user_part(part)).__name__
