"""Pipelines made again, for each pass, with maps that draw random numbers by key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.data.examples.structure import Structure
from hvd_elastic_keras.data.sources.element_draws import KEY, called_with_key
from hvd_elastic_keras.keras_internals import dataset_parts, dataset_remaking
from hvd_elastic_keras.keras_internals.dataset_parts import parts_of
from hvd_elastic_keras.keras_internals.dataset_remaking import in_order


class ReadWholeError(Exception):
    """The maps of a dataset cannot be taken out. The text says why, if a map is the reason."""


class KeyedMaps:
    """Makes pipelines again, with maps that draw random numbers by key.

    Args:
      drawn: these maps.
    """

    def __init__(self, drawn: Sequence[tf.data.Dataset], seed: int) -> None:
        self._drawn = {id(part) for part in drawn}
        self._seed = seed
        self._functions: dict[int, Callable[..., Structure]] = {}
        self._below: dict[int, tf.data.Dataset | None] = {}
        """What lies below these maps: the same in all passes."""
        self._remade: dict[int, Any] = {}
        """What is known of the parts above these maps."""

    def of(self, dataset: tf.data.Dataset, number: int) -> tf.data.Dataset:
        """Returns the pipeline of a pass.

        Raises:
          ReadWholeError: a part above such a map cannot be made again.
        """
        is_cache = dataset_parts.is_cache(dataset)
        if is_cache or not any(id(part) in self._drawn for part in parts_of(dataset)):
            if id(dataset) not in self._below:
                self._below[id(dataset)] = self._cached(dataset) if is_cache else in_order(dataset)
            made = self._below[id(dataset)]
        elif (zipped := dataset_parts.zipped(dataset)) is not None:
            parts = [self.of(part, number) for part in tf.nest.flatten(zipped)]
            made = tf.data.Dataset.zip(tf.nest.pack_sequence_as(zipped, parts))
        elif dataset_parts.is_map(dataset):
            below = self.of(dataset_parts.input_of(dataset), number)
            made = self._mapped(dataset, below, number)
        else:
            parts = [self.of(part, number) for part in dataset._inputs()]
            made = dataset_remaking.remade_of(dataset, parts, self._remade)
        if made is None:
            raise ReadWholeError
        return made

    def _cached(self, part: tf.data.Dataset) -> tf.data.Dataset:
        """Returns a cache for all passes, which keeps what the first one gives."""
        return dataset_remaking.cached_like(part, self.of(dataset_parts.input_of(part), 0))

    def _mapped(
        self, part: tf.data.Dataset, below: tf.data.Dataset, number: int
    ) -> tf.data.Dataset:
        spec = dataset_parts.input_of(part).element_spec
        if id(part) not in self._functions:
            seed = self._seed + len(self._functions)
            self._functions[id(part)] = _keyed_function(part, spec, seed)
        function = self._functions[id(part)]

        def call(index: tf.Tensor, element: Structure) -> Structure:
            return function(element, tf.stack([tf.constant(number, tf.int64), index]))

        calls = tf.data.AUTOTUNE if dataset_parts.is_parallel(part) else None
        deterministic = None if calls is None else True
        return below.enumerate().map(call, num_parallel_calls=calls, deterministic=deterministic)


def _keyed_function(part: tf.data.Dataset, spec: Structure, seed: int) -> Callable[..., Structure]:
    def call(element: Structure, key: tf.Tensor) -> Structure:
        return dataset_parts.call_map(
            part, lambda function, tensors: called_with_key(function, tensors, key, seed), element
        )

    function: Callable[..., Structure] = tf.function(
        call, input_signature=[spec, KEY], autograph=False
    )
    return function
