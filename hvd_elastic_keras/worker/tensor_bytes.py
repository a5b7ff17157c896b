"""Converts tensors to plain bytes, in place, and to dtypes that Horovod can carry."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

Bytes = npt.NDArray[np.uint8]
"""Memory of a tensor: shape [number of bytes]."""
HOST = "CPU:0"
HUGE_BYTES = 4 * 2**20
"""Least size of memory for which huge pages are asked for, as in NumPy."""
MADV_HUGEPAGE = 14
"""Constant of Linux. Python's `mmap` has it, too, but no function for memory of others."""


def given_or_zeros(tensor: tf.Tensor | tf.TensorSpec) -> tf.Tensor:
    return tf.zeros(tensor.shape, tensor.dtype) if isinstance(tensor, tf.TensorSpec) else tensor


def tensor_bytes(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the bytes of a tensor: shape [number of bytes]."""
    plain = tf.cast(tensor, tf.uint8) if tensor.dtype == tf.bool else tensor
    return tf.reshape(tf.bitcast(plain, tf.uint8), [-1])


def of_bytes(data: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Returns the tensor with these bytes, with the shape and dtype of another tensor."""
    if like.dtype == tf.bool:
        return tf.cast(tf.reshape(data, like.shape), tf.bool)
    size = like.dtype.size
    return tf.bitcast(tf.reshape(data, [*like.shape, *([size] if size > 1 else [])]), like.dtype)


def transportable(tensor: tf.Tensor) -> tf.Tensor:
    """Converts dtypes that Horovod cannot broadcast to integers of the same width."""
    if tensor.dtype == tf.bool:
        return tf.cast(tensor, tf.uint8)
    if tensor.dtype == tf.uint32:
        return tf.bitcast(tensor, tf.int32)
    if tensor.dtype == tf.uint64:
        return tf.bitcast(tensor, tf.int64)
    return tensor


def restored(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    if dtype == tf.bool:
        return tf.cast(tensor, tf.bool)
    return tf.bitcast(tensor, dtype) if dtype in (tf.uint32, tf.uint64) else tensor


def bytes_of(spec: tf.Tensor | tf.TensorSpec) -> int:
    """Returns the size of a tensor in bytes."""
    return int(spec.dtype.size) * int(np.prod(spec.shape, dtype=np.int64))


def readable(tensors: Sequence[tf.Tensor]) -> list[Bytes]:
    """Returns the memory of tensors. Copies it only if it is not on the host, or of booleans."""
    return [np.asarray(tensor_bytes(tensor)) for tensor in tensors]


class Blanks:
    """Empty memory of TensorFlow, to be written and then turned into tensors.

    A tensor made from it is not copied when it is assigned to a variable, nor at the first update.
    A tensor made from NumPy's memory would be.

    Args:
      specs: shapes and dtypes of the tensors.
    """

    def __init__(self, specs: Sequence[tf.TensorSpec]) -> None:
        self._specs = specs
        with tf.device(HOST):
            self._raw = [
                tf.raw_ops.Empty(shape=[bytes_of(spec)], dtype=tf.uint8, init=False)
                for spec in specs
            ]
        self.memory: list[Bytes] = [_writable(raw) for raw in self._raw]
        """Memory of each tensor. Nothing else uses it before `tensors` is called."""

    def tensors(self) -> list[tf.Tensor]:
        """Returns the written tensors. The memory must not be used any more."""
        raw, self._raw, self.memory = self._raw, [], []
        with tf.device(HOST):
            return [of_bytes(data, spec) for data, spec in zip(raw, self._specs, strict=True)]


def copies_of(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Copies tensors to memory of their own, on this host.

    This is faster than to keep the tensors of variables and let TensorFlow copy each when it is
    assigned: TensorFlow's memory comes in small pages.
    """
    blanks = Blanks([tf.TensorSpec(t.shape, t.dtype) for t in tensors])
    for memory, source in zip(blanks.memory, readable(tensors), strict=True):
        memory[:] = source
    return blanks.tensors()


def _writable(raw: tf.Tensor) -> Bytes:
    """Returns a tensor's own memory as writable. NumPy shows it as read-only."""
    shown = np.asarray(raw)
    if shown.size == 0:
        return np.empty(0, np.uint8)
    _ask_for_huge_pages(shown.ctypes.data, shown.size)
    return np.ctypeslib.as_array((ctypes.c_uint8 * shown.size).from_address(shown.ctypes.data))


def _ask_for_huge_pages(address: int, size: int) -> None:
    """Asks Linux for memory in huge pages, as NumPy does for its own memory.

    The first access to the memory is several times faster then. All works without huge pages, too.
    """
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (address + size - first) // mmap.PAGESIZE * mmap.PAGESIZE
    if length >= HUGE_BYTES:
        advise = ctypes.CDLL(None).madvise
        advise(ctypes.c_void_p(first), ctypes.c_size_t(length), MADV_HUGEPAGE)
