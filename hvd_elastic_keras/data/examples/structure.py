"""Nested batches: tuples, lists and dicts of tensors, in which some places may hold None.

Keras allows None (no targets, no sample weights); graphs and collectives take tensors only.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_elastic_keras.common.errors import DataError

Structure = Any
"""Nested tuples, lists and dicts of tensors (or of their specs), as in `tf.data`."""
SUMMED_AT_ONCE = 2**18
"""Numbers of which a fingerprint makes copies at a time."""
FINGERPRINT_RTOL = 1e-3
"""Other processors may round a preprocessing step differently, but not by that much."""


class Layout:
    """The form of a batch: which places hold tensors, and of what kind.

    Args:
      spec: `tf.TensorSpec`s or `tf.RaggedTensorSpec`s of a batch of any size, or None where
        batches have nothing.
    """

    def __init__(self, spec: Structure) -> None:
        self.spec = spec
        leaves = tf.nest.flatten(spec)
        self._filled = [i for i, leaf in enumerate(leaves) if leaf is not None]
        self._size = len(leaves)
        self.flat_spec = [leaves[i] for i in self._filled]

    def flatten(self, batch: Structure) -> list[tf.Tensor]:
        """The tensors of a batch, in the order of `flat_spec`."""
        leaves = tf.nest.flatten(batch)
        return [leaves[i] for i in self._filled]

    def pack(self, tensors: list[tf.Tensor]) -> Structure:
        """The batch that `flatten` was given."""
        leaves: list[Any] = [None] * self._size
        for index, tensor in zip(self._filled, tensors, strict=True):
            leaves[index] = tensor
        return tf.nest.pack_sequence_as(self.spec, leaves)


def batch_of(spec: tf.TensorSpec) -> tf.TensorSpec:
    """The spec of a batch of any size, from that of an example."""
    return tf.TensorSpec([None, *spec.shape], spec.dtype)


def batched(spec: Any) -> Any:
    """The spec of a batch of any size, from that of one batch (or the tensor itself).

    >>> batched(tf.TensorSpec([64, 8], tf.float32)).shape.as_list()
    [None, 8]
    """
    if spec is None:
        return None
    if not isinstance(spec, tf.TypeSpec):
        spec = tf.type_spec_from_value(spec)
    shape = [None, *spec.shape[1:]]
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    return tf.TensorSpec(shape, spec.dtype)


def check_sliceable(spec: Structure, name: str) -> None:
    """Raises `DataError` unless batches of this spec can be cut into micro-batches."""
    for leaf in tf.nest.flatten(spec):
        if leaf is None:
            continue
        if not isinstance(leaf, tf.TensorSpec | tf.RaggedTensorSpec):
            raise DataError(
                f"{name} contains {_kind(leaf)}, expected dense or ragged tensors, which can be "
                "cut into micro-batches. Make it dense: x.toarray() for a SciPy matrix, "
                "tf.sparse.to_dense in a map() for a tf.data.Dataset."
            )
        if leaf.shape.rank is None or leaf.shape.rank == 0:
            raise DataError(
                f"{name} contains a tensor of shape {leaf.shape}, expected batches whose first "
                "dimension counts the examples. Use batch(...), and say unknown shapes with "
                "tf.ensure_shape in a map()."
            )


def _kind(spec: Any) -> str:
    return type(spec).__name__.removesuffix("Spec")


def num_examples(batch: Structure) -> int:
    """Size of the first dimension."""
    return _first_dimension(next(leaf for leaf in tf.nest.flatten(batch) if leaf is not None))


def check_cut(batch: Structure, name: str, which: str) -> None:
    """Raises `DataError` unless the first dimension of all that a batch holds is the same.

    Args:
      name: of the data, for messages.
      which: batch this is, for messages.
    """
    sizes = [_first_dimension(leaf) for leaf in tf.nest.flatten(batch) if leaf is not None]
    if any(size != sizes[0] for size in sizes):
        shapes = tf.nest.map_structure(
            lambda t: None if t is None else f"{tuple(t.shape)} {t.dtype.name}", batch
        )
        raise DataError(
            f"{which} of {name} is {str(shapes).replace(chr(39), '')}, with first dimensions of "
            f"{_listed(sizes)}; expected the examples along the first dimension of everything: "
            "that is what is cut into micro-batches and shared by the workers. Put the examples "
            "first, for example with np.swapaxes(x, 0, 1), and swap them back in train_step; what "
            "belongs to no example, such as a table, goes into the model. No micro_batch_size "
            "helps here."
        )


def _listed(sizes: list[int]) -> str:
    *most, last = dict.fromkeys(sizes)
    return f"{', '.join(map(str, most))} and {last}"


def _first_dimension(leaf: Any) -> int:
    if isinstance(leaf, tf.RaggedTensor):
        return int(leaf.nrows())
    return int(leaf.shape[0])


def cut(batch: Structure, low: int, high: int) -> Structure:
    """Examples [low, high) of a batch."""
    return tf.nest.map_structure(lambda t: None if t is None else t[low:high], batch)


def empty(spec: Structure) -> Structure:
    """A batch without examples; dimensions that may have any size have size 0."""
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
    return tf.zeros([size or 0 for size in spec.shape], spec.dtype)


def fingerprint(batch: Structure) -> list[list[Any]]:
    """A short description in terms of JSON that differs for other examples or another order."""
    leaves = tf.nest.flatten(batch, expand_composites=True)
    return [_leaf_fingerprint(np.asarray(leaf)) for leaf in leaves if leaf is not None]


def same_fingerprint(a: list[list[Any]], b: list[list[Any]]) -> bool:
    """Whether two fingerprints are of the same examples, up to rounding."""
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
    """The sums of |x[i]| and of x[i] cos(i), in little memory: a global batch may have gigabytes.

    cos(start + i) = cos(start) cos(i) - sin(start) sin(i), so that one piece of weights will do.
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
