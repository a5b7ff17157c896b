"""Nested batches: tuples, lists and dicts of tensors, in which some places may hold None.

Keras allows None (no targets, no sample weights). Graphs and collectives take tensors only.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_elastic_keras.common.errors import DataError

Structure = Any
"""Nested tuples, lists and dicts of tensors (or of their specs), as in `tf.data`."""
OF_ROWS = (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec)
"""Specs of tensors that can be cut into rows."""
SUMMED_AT_ONCE = 2**18
"""How many numbers a fingerprint copies at a time."""
FINGERPRINT_RTOL = 1e-3
"""Processors may round a preprocessing step differently, but not by this much."""


class Layout:
    """The form of a batch: which places hold tensors, and what kinds of tensors.

    Args:
      spec: specs of the tensors of a batch of any size, or None where batches have no tensor.
      per_row: entries per example, as the function `per_row` returns them. None: 1 for each tensor.
    """

    def __init__(self, spec: Structure, per_row: Sequence[int] | None = None) -> None:
        self.spec = spec
        leaves = tf.nest.flatten(spec)
        self._filled = [i for i, leaf in enumerate(leaves) if leaf is not None]
        self._size = len(leaves)
        self.flat_spec = [leaves[i] for i in self._filled]
        self.per_row = tuple(per_row or (1,) * len(self._filled))

    def of_size(self, num_rows: int) -> list[Any]:
        """Returns `flat_spec` for batches of a known number of rows, where tensors are dense."""
        return [
            tf.TensorSpec([num_rows * entries, *spec.shape[1:]], spec.dtype)
            if entries and isinstance(spec, tf.TensorSpec) and spec.shape.rank is not None
            else spec
            for spec, entries in zip(self.flat_spec, self.per_row, strict=True)
        ]

    def flatten(self, batch: Structure) -> list[tf.Tensor]:
        """Returns the tensors of a batch, in the order of `flat_spec`."""
        leaves = tf.nest.flatten(batch)
        return [leaves[i] for i in self._filled]

    def pack(self, tensors: list[tf.Tensor]) -> Structure:
        """Returns the batch from which `flatten` made these tensors."""
        leaves: list[Any] = [None] * self._size
        for index, tensor in zip(self._filled, tensors, strict=True):
            leaves[index] = tensor
        return tf.nest.pack_sequence_as(self.spec, leaves)


def batch_of(spec: tf.TensorSpec) -> tf.TensorSpec:
    """Returns the spec of a batch of any size, from the spec of an example."""
    return tf.TensorSpec([None, *spec.shape], spec.dtype)


def batched(spec: Any) -> Any:
    """Returns the spec of a batch of any size, from the spec of one batch or from the batch itself.

    >>> batched(tf.TensorSpec([64, 8], tf.float32)).shape.as_list()
    [None, 8]
    """
    if spec is None:
        return None
    if not isinstance(spec, tf.TypeSpec):
        spec = tf.type_spec_from_value(spec)
    if not isinstance(spec, OF_ROWS) or spec.shape.rank == 0:
        return spec
    shape = [None, *spec.shape[1:]]
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.SparseTensorSpec(shape, spec.dtype)
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    return tf.TensorSpec(shape, spec.dtype)


def check_sliceable(spec: Structure, name: str, *, of_examples: bool = False) -> None:
    """Raises `DataError` unless batches of this spec can be cut into the rows of workers.

    Args:
      of_examples: whether every tensor has the examples along its first dimension.
    """
    leaves = [leaf for leaf in tf.nest.flatten(spec) if leaf is not None]
    for leaf in leaves:
        if not isinstance(leaf, OF_ROWS):
            raise DataError(
                f"{name} contains {_kind(leaf)}, expected dense, ragged or sparse tensors, which "
                "can be shared by workers. Convert it in a map()."
            )
        if leaf.shape.rank is None:
            raise DataError(
                f"{name} contains a tensor of unknown shape, expected batches whose first "
                "dimension counts the examples. Say the shape with tf.ensure_shape in a map()."
            )
    if not (all if of_examples else any)(leaf.shape.rank for leaf in leaves):
        raise DataError(
            f"{name} contains a tensor of shape (), expected batches whose first dimension counts "
            "the examples. Use batch(...)."
        )


def _kind(spec: Any) -> str:
    return type(spec).__name__.removesuffix("Spec")


def num_examples(batch: Structure) -> int:
    """Returns the size of the first dimension of the first tensor that has dimensions."""
    return next(n for n in _first_dimensions(batch) if n is not None)


def per_row(batch: Structure) -> tuple[int, ...]:
    """Returns how many entries along the first axis of each tensor belong to an example.

    An example is an entry of the first tensor that is not a single number. If another tensor has k
    times as many entries, k entries belong to each example. A tensor of another size, or a single
    number, belongs to no example: 0.

    >>> per_row((tf.zeros([16, 8]), tf.zeros([64, 8]), tf.zeros([5]), tf.constant(0.5)))
    (1, 4, 0, 0)
    """
    total = num_examples(batch)
    leaves = [leaf for leaf in tf.nest.flatten(batch) if leaf is not None]
    return tuple(
        _entries(leaf, size, total)
        for leaf, size in zip(leaves, _first_dimensions(batch), strict=True)
    )


def _entries(leaf: Any, size: int | None, total: int) -> int:
    if size is None or total == 0 or size % total:
        return int(size == total)
    entries = size // total
    # Ragged and sparse tensors with several rows per example go whole to every worker.
    return entries if entries <= 1 or isinstance(leaf, tf.Tensor) else 0


def can_be_cut(batch: Structure, entries: Sequence[int]) -> bool:
    """Returns whether a batch has as many entries per example as the first one.

    Args:
      entries: entries of each tensor per example, as `per_row` returns them.
    """
    total, sizes = num_examples(batch), _first_dimensions(batch)
    pairs = zip(sizes, entries, strict=True)
    return all(size == total * count or not count for size, count in pairs)


def check_cut(batch: Structure, entries: Sequence[int], name: str, which: str) -> None:
    """Raises `DataError` unless `can_be_cut`.

    Args:
      name: name of the data, for messages.
      which: name of the batch, for messages.
    """
    if can_be_cut(batch, entries):
        return
    shapes = tf.nest.map_structure(
        lambda t: None if t is None else f"{tuple(t.shape)} {t.dtype.name}", batch
    )
    ratios = " : ".join(str(count) for count in entries if count)
    raise DataError(
        f"{which} of {name} is {str(shapes).replace(chr(39), '')}; expected first dimensions in "
        f"the ratio {ratios}, as in the first batch: that is how a batch is shared by the workers. "
        "Leave out batches of other sizes, for example with batch(..., drop_remainder=True)."
    )


def _first_dimensions(batch: Structure) -> list[int | None]:
    """Returns the first dimension of each tensor; None for a single number."""
    leaves = [leaf for leaf in tf.nest.flatten(batch) if leaf is not None]
    return [_first_dimension(leaf) if leaf.shape.rank else None for leaf in leaves]


def _first_dimension(leaf: Any) -> int:
    if isinstance(leaf, tf.RaggedTensor):
        return int(leaf.nrows())
    return int(leaf.shape[0])


def cut(batch: Structure, low: int, high: int, entries: Sequence[int] | None = None) -> Structure:
    """Returns examples [low, high) of a batch. Tensors that belong to no example stay whole.

    Args:
      entries: entries of each tensor per example, as `per_row` returns them. None: 1.
    """
    flat = tf.nest.flatten(batch)
    counts = itertools.repeat(1) if entries is None else iter(entries)
    rows = [None if t is None else rows_of(t, low, high, next(counts)) for t in flat]
    return tf.nest.pack_sequence_as(batch, rows)


def rows_of(tensor: Any, low: Any, high: Any, entries: int = 1) -> Any:
    """Returns examples [low, high) of a tensor; `entries` is the number of entries per example.

    With `entries` 0, returns the whole tensor.
    """
    if not entries:
        return tensor
    if not isinstance(tensor, tf.SparseTensor):
        return tensor[low * entries : high * entries]
    others = tf.cast(tensor.dense_shape[1:], tf.int64)
    begin = tf.concat([[tf.cast(low, tf.int64)], tf.zeros_like(others)], 0)
    size = tf.concat([[tf.cast(high - low, tf.int64)], others], 0)
    return tf.sparse.slice(tensor, begin, size)


def filled(nothing: Structure, some: Structure, count: int, entries: Sequence[int]) -> Structure:
    """Returns a batch of `count` examples that mean nothing, but have the shapes of the others.

    Args:
      nothing: a batch without examples.
      some: examples to repeat; None: use zeros.
      entries: entries of each tensor per example, as `per_row` returns them.
    """
    leaves = tf.nest.flatten(nothing)
    examples = [None] * len(leaves) if some is None else tf.nest.flatten(some)
    counts = iter(entries)
    rows = [
        None if leaf is None else _filled(leaf, example, count, next(counts))
        for leaf, example in zip(leaves, examples, strict=True)
    ]
    return tf.nest.pack_sequence_as(nothing, rows)


def _filled(nothing: Any, some: Any, count: int, entries: int) -> Any:
    if not entries:
        return nothing
    size = count * entries
    if isinstance(nothing, tf.SparseTensor):
        shape = tf.concat([[tf.cast(size, tf.int64)], nothing.dense_shape[1:]], 0)
        return tf.SparseTensor(nothing.indices, nothing.values, shape)
    if some is not None and _first_dimension(some):
        return tf.gather(some, tf.range(size) % _first_dimension(some))
    if isinstance(nothing, tf.RaggedTensor):
        splits = tf.zeros([size + 1], nothing.row_splits.dtype)
        return tf.RaggedTensor.from_row_splits(nothing.values, splits)
    return tf.zeros([size, *nothing.shape[1:]], nothing.dtype)


def empty(spec: Structure) -> Structure:
    """Returns a batch without examples. Dimensions that may have any size get size 0."""
    return tf.nest.map_structure(_empty, spec)


def _empty(spec: Any) -> Any:
    if spec is None:
        return None
    if isinstance(spec, tf.RaggedTensorSpec):
        inner = [size or 0 for size in spec.shape[spec.ragged_rank + 1 :]]
        values: Any = tf.zeros([0, *inner], spec.dtype)
        for _ in range(spec.ragged_rank):
            splits = tf.zeros([1], spec.row_splits_dtype)
            values = tf.RaggedTensor.from_row_splits(values, splits)
        return values
    if isinstance(spec, tf.SparseTensorSpec):
        sizes = [size or 0 for size in spec.shape]
        none = tf.zeros([0, len(sizes)], tf.int64)
        return tf.SparseTensor(none, tf.zeros([0], spec.dtype), sizes)
    return tf.zeros([size or 0 for size in spec.shape], spec.dtype)


def fingerprint(batch: Structure) -> list[list[Any]]:
    """Returns a short description as JSON values. It differs for other examples or orders."""
    leaves = tf.nest.flatten(batch, expand_composites=True)
    return [_leaf_fingerprint(np.asarray(leaf)) for leaf in leaves if leaf is not None]


def same_fingerprint(a: list[list[Any]], b: list[list[Any]]) -> bool:
    """Returns whether two fingerprints describe the same examples, up to rounding."""
    if len(a) != len(b):
        return False
    return all(
        shape_a == shape_b and bool(np.allclose(x, y, rtol=FINGERPRINT_RTOL, equal_nan=True))
        for (shape_a, x), (shape_b, y) in zip(a, b, strict=True)
    )


def _leaf_fingerprint(array: Any) -> list[Any]:
    if array.dtype == object:
        crc = 0
        for number, text in enumerate(array.ravel()):
            crc = zlib.crc32(bytes(text), zlib.crc32(b"\0", crc) if number else 0)
        return [list(array.shape), [float(crc)]]
    return [list(array.shape), list(_sums(array.reshape(-1)))]


def _sums(flat: Any) -> tuple[float, float]:
    """Returns the sum of |x[i]| and the sum of x[i] cos(i).

    It needs little memory, because a global batch may have gigabytes. Since cos(start + i) =
    cos(start) cos(i) - sin(start) sin(i), the same weights serve for all pieces.
    """
    positions = np.arange(min(flat.size, SUMMED_AT_ONCE), dtype=np.float64)
    cosines, sines = np.cos(positions), np.sin(positions)
    absolute = weighted = 0.0
    for start in range(0, flat.size, SUMMED_AT_ONCE):
        piece = flat[start : start + SUMMED_AT_ONCE].astype(np.float64)
        size = piece.size
        weighted += np.cos(start) * np.dot(piece, cosines[:size])
        weighted -= np.sin(start) * np.dot(piece, sines[:size])
        absolute += np.abs(piece, out=piece).sum()
    return float(absolute), float(weighted)
