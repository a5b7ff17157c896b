"""Takes the maps out of a `tf.data.Dataset`, so that each worker runs them on its own rows only.

Operations that only choose, order or batch elements (`shuffle`, `repeat`, `take`, `skip`, `zip`,
`batch`, `prefetch`) do not look at the elements. A `map` that treats each element by itself can
therefore be moved from below them to above them. Without its maps, the pipeline gives the same
elements in the same order, but each as it was before the maps. All workers read these raw elements,
which costs little if they are, for example, names of files.

An operation that looks at elements (`filter`, `interleave`, `flat_map`, `cache`, a `map` of
batches) stays where it is, with everything below it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.data.examples.structure import Structure
from hvd_elastic_keras.data.sources.element_draws import KEY, called_with_key, can_be_called
from hvd_elastic_keras.keras_internals import dataset_parts

ElementMap = Callable[[Structure, tf.Tensor], Structure]
"""Returns what the maps make of a raw element; its second argument is the element's key."""


@dataclasses.dataclass(frozen=True)
class SplitDataset:
    """A dataset of batches, without some of its maps.

    Attributes:
      raw: batches of raw elements, in the same order as the batches of the user's dataset.
      element_spec: specs of a raw element and of its key.
      element_map: the maps that were taken out. Its argument is a raw element and its key.
      taken: the parts of the user's dataset that were taken out.
    """

    raw: tf.data.Dataset
    element_spec: Structure
    element_map: Callable[[tuple[Structure, tf.Tensor]], Structure]
    taken: tuple[tf.data.Dataset, ...]


@dataclasses.dataclass(frozen=True)
class _Elements:
    """A dataset of single elements without its maps."""

    raw: tf.data.Dataset
    call: ElementMap = lambda element, key: element
    taken: tuple[tf.data.Dataset, ...] = ()


def split(dataset: tf.data.Dataset, seed: int) -> SplitDataset | None:
    """Takes maps out of a dataset of batches.

    Args:
      seed: random numbers that the maps draw follow from it, from the pass and from the number of
        the element.

    Returns:
      The parts. None if there is no map to take out, or if the shape of its results may differ from
      element to element: the elements of different workers could then fit without fitting together.
    """
    found = _split_batches(dataset, seed)
    return found and dataclasses.replace(found, raw=found.raw.with_options(dataset.options()))


def _split_batches(dataset: tf.data.Dataset, seed: int) -> SplitDataset | None:
    if dataset_parts.passes_elements_on(dataset):
        return _split_batches(dataset_parts.input_of(dataset), seed)
    if batch := dataset_parts.batch_of(dataset):
        return _split_batch(dataset_parts.input_of(dataset), *batch, seed)
    if len(dataset._inputs()) != 1:
        return None
    found = _split_batches(dataset_parts.input_of(dataset), seed)
    if found is None:
        return None
    raw = dataset_parts.chosen_like(dataset, found.raw)
    return None if raw is None else dataclasses.replace(found, raw=raw)


def _split_batch(
    elements: tf.data.Dataset, size: int, drop_remainder: bool, seed: int
) -> SplitDataset | None:
    if not _has_one_shape(elements.element_spec):
        return None
    found = _split_elements(elements, seed)
    if not found.taken:
        return None
    packed, unpack = _packed(found.raw)

    def element_map(element_and_key: tuple[Structure, tf.Tensor]) -> Structure:
        element, key = element_and_key
        return found.call(unpack(element), key)

    return SplitDataset(
        packed.batch(size, drop_remainder=drop_remainder),
        (packed.element_spec, KEY),
        element_map,
        found.taken,
    )


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
        raw = dataset_parts.chosen_like(dataset, found.raw) if found.taken else None
        if raw is not None:
            return dataclasses.replace(found, raw=raw)
    return _Elements(dataset)


def _split_map(dataset: tf.data.Dataset, seed: int) -> _Elements:
    below = dataset_parts.input_of(dataset)
    if not (_is_dense(below.element_spec) and can_be_called(dataset)):
        return _Elements(dataset)
    found = _split_elements(below, seed)
    number = len(found.taken)

    def call(element: Structure, key: tf.Tensor) -> Structure:
        return dataset_parts.call_map(
            dataset,
            lambda function, tensors: called_with_key(function, tensors, key, seed + number),
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


def _is_dense(spec: Structure) -> bool:
    return all(isinstance(leaf, tf.TensorSpec) for leaf in tf.nest.flatten(spec))


def _has_one_shape(spec: Structure) -> bool:
    return _is_dense(spec) and all(s.shape.is_fully_defined() for s in tf.nest.flatten(spec))
