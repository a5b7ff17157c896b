"""A source that reads and decodes examples once, and keeps them in memory."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_elastic_keras.common.errors import DataError
from hvd_elastic_keras.data.examples.preparation import Preprocess
from hvd_elastic_keras.data.sources.random_access import Source

DEFAULT_BYTES = 2**30


class CachedSource:
    """A source that prepares examples at their first use and keeps them from then on.

    It is for data that fit into memory once they are decoded, but cost more to decode than to train
    on. Every worker keeps the examples that it has used itself; over several epochs, these are all
    examples.

    Args:
      source: source of the examples.
      prepare: a function that runs once for each example, such as decoding, in TensorFlow
        operations. Anything that must differ from epoch to epoch, such as augmentation, belongs in
        the `preprocess` next to this source.
      max_bytes: bytes of examples to keep; other examples are prepared each time.

    Raises:
      DataError: `max_bytes` is negative.

    Example:

        return CachedSource(Photos(), decode), augment
    """

    def __init__(
        self, source: Source, prepare: Preprocess | None = None, *, max_bytes: int = DEFAULT_BYTES
    ) -> None:
        if max_bytes < 0:
            raise DataError(f"max_bytes={max_bytes} was given, expected 0 or more.")
        self._source = source
        self._prepare = tf.function(prepare, reduce_retracing=True) if prepare else None
        self._kept: dict[int, Any] = {}
        self._bytes_left = max_bytes
        self._lock = threading.Lock()
        self.block_size = getattr(source, "block_size", None)
        self.window_blocks = getattr(source, "window_blocks", None)
        self.element_spec = None if prepare else getattr(source, "element_spec", None)
        own = getattr(source, "read_threads", None) or 1
        self.read_threads = max(own, os.cpu_count() or 1) if prepare else own
        self._reading = threading.Semaphore(own)

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Any:
        kept = self._kept.get(index)
        return self._read(index) if kept is None else kept

    def _read(self, index: int) -> Any:
        with self._reading:
            example = self._source[index]
        if self._prepare is not None:
            tensors = tf.nest.map_structure(tf.convert_to_tensor, example)
            example = tf.nest.map_structure(lambda t: t.numpy(), self._prepare(tensors))
        size = sum(_bytes_of(leaf) for leaf in tf.nest.flatten(example))
        with self._lock:
            if size <= self._bytes_left and index not in self._kept:
                self._bytes_left -= size
                self._kept[index] = example
        return example


def _bytes_of(leaf: Any) -> int:
    return len(leaf) if isinstance(leaf, bytes) else np.asarray(leaf).nbytes
