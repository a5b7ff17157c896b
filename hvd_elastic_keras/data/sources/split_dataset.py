"""Takes the maps out of a `tf.data.Dataset`, so that each worker runs them on its own rows only.

Operations that only choose, order or batch elements (`shuffle`, `repeat`, `take`, `skip`, `zip`,
`batch`, `prefetch`) do not look at the elements. A `map` that treats each element by itself can
therefore be moved from below them to above them. Without its maps, the pipeline gives the same
elements in the same order, but each as it was before the maps. All workers read these raw elements,
which costs little if they are, for example, names of files.

An operation that looks at elements (`filter`, `interleave`, `flat_map`, `cache`) stays where it is,
with everything below it. Where a map cannot be taken out, all workers read the user's pipeline.
They have to read the same: maps that draw random numbers draw them by key (`element_draws.py`), and
`deterministic=False` is ignored.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.data.examples.structure import Structure
from hvd_elastic_keras.data.sources.element_draws import (
    KEY,
    called_with_key,
    calls_python_only,
    can_draw_by_key,
    draws_by_call,
    reason_to_stay,
)
from hvd_elastic_keras.data.sources.keyed_maps import KeyedMaps, ReadWholeError
from hvd_elastic_keras.keras_internals import dataset_parts, dataset_remaking
from hvd_elastic_keras.keras_internals.dataset_parts import parts_of
from hvd_elastic_keras.keras_internals.dataset_remaking import in_order
from hvd_elastic_keras.keras_internals.tensorflow_names import is_op_determinism_enabled

ElementMap = Callable[[Structure, tf.Tensor], Structure]
"""Returns what the maps make of a raw element; its second argument is the element's key."""
_HANDLES = (tf.variant, tf.resource)


@dataclasses.dataclass(frozen=True)
class SplitDataset:
    """A dataset of batches, without some of its maps.

    Attributes:
      raw: batches of raw elements, in the same order as the batches of the user's dataset. None if
        the user's pipeline cannot be made to give the same batches to all workers.
      element_spec: specs of a raw element and of its key; of a row of `raw` if there is no
        `element_map`.
      element_map: the maps of elements that were taken out. Its argument is a raw element and its
        key. None if there are none.
      batch_maps: the maps of batches that were taken out, each as a function of rows.
      taken: the parts of the user's dataset that were taken out.
      of_pass: returns what is read in a pass, with maps that draw by key; None if none need to.
        `raw` is then the dataset of pass 0.
      drawn: the maps of the user's dataset that draw by key.
      left: the first map that all workers run on all elements, and why; empty if there is none.
    """

    raw: tf.data.Dataset | None
    element_spec: Structure = None
    element_map: Callable[[tuple[Structure, tf.Tensor]], Structure] | None = None
    batch_maps: tuple[Callable[[Structure], Structure], ...] = ()
    taken: tuple[tf.data.Dataset, ...] = ()
    of_pass: Callable[[int], tf.data.Dataset] | None = None
    drawn: tuple[tf.data.Dataset, ...] = ()
    left: str = ""

    def pipeline(self, number: int) -> tf.data.Dataset | None:
        """Returns the dataset that is read in a pass."""
        return self.of_pass(number) if self.of_pass else self.raw


@dataclasses.dataclass(frozen=True)
class _Elements:
    """A dataset of single elements without its maps."""

    raw: tf.data.Dataset
    call: ElementMap = lambda element, key: element
    taken: tuple[tf.data.Dataset, ...] = ()


def split(dataset: tf.data.Dataset, seed: int, is_row_wise: Callable[[Any], bool]) -> SplitDataset:
    """Takes maps out of a dataset of batches.

    A map of batches is taken out if it is proved to treat rows one by one. Maps of elements are not
    taken out if the shape of their results may differ from element to element: the elements of one
    worker could then form a batch although all elements do not.

    Args:
      seed: random numbers that the maps draw follow from it, from the pass and from the number of
        the element.
      is_row_wise: whether each row of the results of a traced function follows from the same row of
        its arguments.

    Returns:
      The parts. If no map could be taken out, `taken` is empty.
    """
    left = _left(dataset)
    try:
        found = _split_batches(dataset, seed, is_row_wise)
    except ReadWholeError as error:
        found, left = SplitDataset(None), str(error) or left
    if found.raw is not None and found.taken:
        found = _alike(found, found.raw, dataset, seed)
        if found.raw is not None:
            return found
    return dataclasses.replace(_alike(SplitDataset(None), dataset, dataset, seed), left=left)


def _alike(
    found: SplitDataset, rest: tf.data.Dataset, dataset: tf.data.Dataset, seed: int
) -> SplitDataset:
    """Makes a pipeline give the same elements to all workers.

    Args:
      found: the maps that were taken out.
      rest: the user's pipeline without them.
    """
    drawn = tuple(part for part in parts_of(rest) if draws_by_call(part))
    options, left = _options(dataset), _left(rest)
    keyed = KeyedMaps(drawn, seed + len(found.taken))

    def of_pass(number: int) -> tf.data.Dataset:
        return keyed.of(rest, number).with_options(options)

    if drawn and all(map(can_draw_by_key, drawn)):
        with contextlib.suppress(ReadWholeError):
            return dataclasses.replace(
                found, raw=of_pass(0), of_pass=of_pass, drawn=drawn, left=left
            )
    if any(not calls_python_only(part) for part in drawn):
        return SplitDataset(None)
    ordered = in_order(rest)
    if ordered is None:
        return SplitDataset(None)
    if ordered is not dataset or dataset.options().deterministic is False:
        ordered = ordered.with_options(options)
    return dataclasses.replace(found, raw=ordered, left=left)


def _options(dataset: tf.data.Dataset) -> tf.data.Options:
    """Returns the options of a dataset, but for those that would change the order."""
    options = dataset.options()
    if options.deterministic is not False:
        return options
    ordered = tf.data.Options()
    ordered.deterministic = True
    return options.merge(ordered)


def _split_batches(
    dataset: tf.data.Dataset, seed: int, is_row_wise: Callable[[Any], bool]
) -> SplitDataset:
    if batch := dataset_parts.batch_of(dataset):
        return _split_batch(dataset, *batch, seed)
    if dataset_parts.pads_batches(dataset):
        return SplitDataset(dataset)
    if len(dataset._inputs()) != 1:
        raise ReadWholeError
    found = _split_batches(dataset_parts.input_of(dataset), seed, is_row_wise)
    if dataset_parts.passes_elements_on(dataset):
        return found
    if dataset_parts.is_map(dataset):
        return _with_batch_map(found, dataset, is_row_wise)
    if not found.taken and dataset_parts.only_chooses(dataset):
        return dataclasses.replace(found, raw=dataset)
    raw = dataset_remaking.chosen_like(dataset, found.raw) if found.taken else None
    if raw is None:  # for example, its elements may be no batches any more
        raise ReadWholeError
    return dataclasses.replace(found, raw=raw)


def _with_batch_map(
    found: SplitDataset, dataset: tf.data.Dataset, is_row_wise: Callable[[Any], bool]
) -> SplitDataset:
    (function,) = dataset_parts.functions_of(dataset)
    dense = _is_dense(dataset_parts.input_of(dataset).element_spec)
    reason = reason_to_stay(dataset)
    if not reason and is_op_determinism_enabled():
        reason = "may round some rows differently than the whole batch"
    if not reason and not (dense and is_row_wise(function.function)):
        reason = "may mix the rows of a batch"
    if reason:
        raise ReadWholeError(f"map(...) of batches {reason}")

    def call(rows: Structure) -> Structure:
        return dataset_parts.call_map(
            dataset, lambda f, tensors: tf.nest.flatten(f(*tensors)), rows
        )

    if found.element_map is None and not found.batch_maps:
        spec = dataset_parts.input_of(dataset).element_spec
        found = dataclasses.replace(found, element_spec=tf.nest.map_structure(_of_row, spec))
    return dataclasses.replace(
        found,
        batch_maps=(*found.batch_maps, call),
        taken=(*found.taken, dataset),
    )


def _split_batch(
    dataset: tf.data.Dataset, size: int, drop_remainder: bool, seed: int
) -> SplitDataset:
    elements = dataset_parts.input_of(dataset)
    found = _split_elements(elements, seed)
    if not (found.taken and _has_one_shape(elements.element_spec)):
        return SplitDataset(dataset)
    packed, unpack = _packed(found.raw)

    def element_map(element_and_key: tuple[Structure, tf.Tensor]) -> Structure:
        element, key = element_and_key
        return found.call(unpack(element), key)

    return SplitDataset(
        packed.batch(size, drop_remainder=drop_remainder),
        (packed.element_spec, KEY),
        tf.autograph.experimental.do_not_convert(element_map),
        taken=found.taken,
    )


def _left(dataset: tf.data.Dataset, above: str = "") -> str:
    """Returns the last map that is left in a dataset, and why; empty if there is none.

    Maps below a `cache` do not count: they are called in the first pass only.

    Args:
      above: the operation above the dataset that maps are not moved across.
    """
    if dataset_parts.is_cache(dataset):
        return ""
    if not dataset_parts.is_map(dataset):
        if not dataset_parts.lets_maps_pass(dataset):
            above = dataset_parts.method_of(dataset)
        return next(filter(None, (_left(part, above) for part in dataset._inputs())), "")
    reason = reason_to_stay(dataset)
    if not reason and not _is_dense(dataset_parts.input_of(dataset).element_spec):
        reason = "takes ragged or sparse tensors"
    if not reason and not _has_one_shape(dataset.element_spec):
        reason = "gives elements of different shapes"
    if not reason:
        reason = f"stands below {above}(...)" if above else "cannot be moved to the end"
    return f"map(...) {reason}"


def _split_elements(dataset: tf.data.Dataset, seed: int) -> _Elements:
    if dataset_parts.passes_elements_on(dataset):
        return _split_elements(dataset_parts.input_of(dataset), seed)
    if dataset_parts.is_map(dataset):
        return _split_map(dataset, seed)
    zipped = dataset_parts.zipped(dataset)
    if zipped is not None:
        return _split_zip(dataset, zipped, seed)
    if len(dataset._inputs()) == 1:
        found = _split_elements(dataset_parts.input_of(dataset), seed)
        raw = dataset_remaking.chosen_like(dataset, found.raw) if found.taken else None
        if raw is not None:
            return dataclasses.replace(found, raw=raw)
    return _Elements(dataset)


def _split_map(dataset: tf.data.Dataset, seed: int) -> _Elements:
    below = dataset_parts.input_of(dataset)
    if not _is_dense(below.element_spec) or reason_to_stay(dataset):
        return _Elements(dataset)
    found = _split_elements(below, seed)
    number = len(found.taken)

    def call(element: Structure, key: tf.Tensor) -> Structure:
        return dataset_parts.call_map(
            dataset,
            lambda function, tensors: called_with_key(
                function, tensors, key, seed + number, of_own_rows=True
            ),
            found.call(element, key),
        )

    return _Elements(found.raw, call, (*found.taken, dataset))


def _split_zip(dataset: tf.data.Dataset, zipped: Any, seed: int) -> _Elements:
    parts = [_split_elements(part, seed) for part in tf.nest.flatten(zipped)]
    taken = tuple(part for found in parts for part in found.taken)
    if not taken:
        return _Elements(dataset)

    def call(element: Structure, key: tf.Tensor) -> Structure:
        called = [part.call(e, key) for part, e in zip(parts, element, strict=True)]
        return tf.nest.pack_sequence_as(zipped, called)

    return _Elements(tf.data.Dataset.zip(tuple(part.raw for part in parts)), call, taken)


def _packed(
    raw: tf.data.Dataset,
) -> tuple[tf.data.Dataset, Callable[[Structure], Structure]]:
    """Makes raw elements of different shapes fit into a batch: as serialized tensors.

    Returns:
      The dataset, and the function that restores an element.
    """
    spec = raw.element_spec
    if _has_one_shape(spec):
        return raw, lambda element: element
    leaves = tf.nest.flatten(spec)

    def pack(*element: Structure) -> Structure:
        tensors = tf.nest.flatten(element)
        packed = [
            tensor if leaf.shape.is_fully_defined() else tf.io.serialize_tensor(tensor)
            for tensor, leaf in zip(tensors, leaves, strict=True)
        ]
        return tuple(packed)

    def unpack(packed: Structure) -> Structure:
        tensors = [
            tensor
            if leaf.shape.is_fully_defined()
            else tf.ensure_shape(tf.io.parse_tensor(tensor, leaf.dtype), leaf.shape)
            for tensor, leaf in zip(packed, leaves, strict=True)
        ]
        return tf.nest.pack_sequence_as(spec, tensors)

    return raw.map(pack), unpack


def _of_row(spec: tf.TensorSpec) -> tf.TensorSpec:
    return tf.TensorSpec(spec.shape[1:], spec.dtype)


def _is_dense(spec: Structure) -> bool:
    leaves = tf.nest.flatten(spec)
    return all(isinstance(s, tf.TensorSpec) and s.dtype not in _HANDLES for s in leaves)


def _has_one_shape(spec: Structure) -> bool:
    return _is_dense(spec) and all(s.shape.is_fully_defined() for s in tf.nest.flatten(spec))
