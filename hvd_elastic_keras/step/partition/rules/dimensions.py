"""Describes how the sizes of tensors depend on the number of rows of a batch.

TensorFlow's own shape functions answer for three numbers of rows: 2, a prime number, and one larger
than most batches. A dimension holds rows if it is the same multiple of the rows for all three
numbers. A minimum or maximum with a constant, a remainder or a rounded quotient differs for one of
them. A size that no shape function knows stays unknown, and is never taken for rows.

The results hold for batches from 2 rows up to the largest number tried, which `tried_up_to`
chooses. A batch of one row may have a shape of its own: it is broadcast. No value of the batch is
read, and no operation of the model is run.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Iterator

import tensorflow as tf

Dim = tuple[int, ...] | None
"""A size for each number of rows that is tried; None if it is unknown."""
Dims = tuple[Dim, ...] | None
"""The dimensions of a tensor; None if their number is unknown."""
ROWS = (2, 11, 8209)
"""The numbers of rows that are tried if batches are not larger."""
LARGEST = (ROWS[-1], 131_101, 2_097_169, 33_554_467)
"""Prime numbers. The smallest sufficient one is tried, because sizes in 32 bits overflow for large
ones and are then unknown."""
_TRIED = contextvars.ContextVar("tried", default=ROWS)
OTHER_SIZES = ((13, 17, 19), (23, 29, 31), (37, 41, 43), (47, 53, 59), (61, 67, 71))
"""Stand-ins for other sizes that a batch leaves open, such as the length of texts."""


def tried() -> tuple[int, ...]:
    """Returns the numbers of rows that are tried at present."""
    return _TRIED.get()


@contextlib.contextmanager
def tried_up_to(num_rows: int) -> Iterator[None]:
    """Tries this number of rows or a larger one, inside a `with` block.

    Raises:
      ValueError: the number is larger than supported.
    """
    if num_rows > LARGEST[-1]:
        raise ValueError(f"a batch has {num_rows} rows, expected {LARGEST[-1]} at most")
    token = _TRIED.set((*ROWS[:-1], next(n for n in LARGEST if n >= num_rows)))
    try:
        yield
    finally:
        _TRIED.reset(token)


def constant(size: int) -> Dim:
    """Returns a size that does not depend on the rows."""
    return (size,) * len(ROWS)


def is_constant(dim: Dim) -> bool:
    """Whether a size is known not to depend on the rows."""
    return dim is not None and len(set(dim)) == 1


def is_multiple(dim: Dim) -> bool:
    """Whether a size is a multiple of the number of rows, and depends on nothing else."""
    return dim is not None and _holds(dim, tried()) and is_constant(_quotient(dim, tried()))


def is_rows(dim: Dim) -> bool:
    """Whether a size is a multiple of the number of rows.

    The factor may contain other sizes that a batch leaves open.
    """
    return _is_rows(dim, tried())


@functools.cache
def _is_rows(dim: Dim, rows: tuple[int, ...]) -> bool:
    if dim is None or not _holds(dim, rows):
        return False
    count = _quotient(dim, rows)
    for size in (rows, *OTHER_SIZES):
        while _holds(count, size):
            count = _quotient(count, size)
    return is_constant(count)


def _holds(dim: tuple[int, ...], factor: tuple[int, ...]) -> bool:
    return all(d and d % f == 0 for d, f in zip(dim, factor, strict=True))


def _quotient(dim: tuple[int, ...], factor: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(d // f for d, f in zip(dim, factor, strict=True))


def rows_axes(dims: Dims) -> list[int]:
    """Returns the axes along which the rows of a batch may lie."""
    return [axis for axis, dim in enumerate(dims or ()) if is_rows(dim)]


def dim_at(dims: Dims, axis: int) -> Dim:
    """Returns one of the dimensions; None if it is unknown or there is no such axis."""
    return dims[axis] if dims is not None and 0 <= axis < len(dims) else None


def static(shape: tf.TensorShape) -> Dims:
    """Returns the dimensions that are known when a step is traced for any number of rows."""
    if shape.rank is None:
        return None
    return tuple(None if size is None else constant(size) for size in shape)
