"""Describes each batch that a worker has read in a few numbers, so that workers can compare them.

Every worker reads some data whole: a `tf.data.Dataset`, a `PyDataset`, a generator. These data must
be the same on all workers. Randomness without a seed may show in any batch.
"""

from __future__ import annotations

import dataclasses
import itertools
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from hvd_elastic_keras.data.examples.structure import Structure

SAMPLED = 1024
"""Most numbers of a tensor that are sampled."""
SAMPLED_TEXTS = 16
LONGEST_PATH = 4096
"""Bytes of the longest path of a file on Linux: `PATH_MAX`."""
TOLERANCE = 1e-4
"""Relative to the sum of absolute values: processors may round a preprocessing step differently."""
Rows = npt.NDArray[np.float64]
"""Shape [batches, 3 + 2 * tensors].

The columns are: pass, position in the pass, checksum of shapes and texts, then two sums per tensor.
"""
NO_BATCH = -1.0
"""Stands in place of a pass in a row without a batch."""
LEAST_WIDTH = 3
"""Least width of a row: pass, position and checksum."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """The first batch that was not the same on all workers.

    Attributes:
      number, position: the pass, and the position in the pass; both count from 0.
      odd: ranks of the workers that are in the minority; empty if there is no minority.
    """

    number: int
    position: int
    odd: tuple[int, ...]


class BatchLog:
    """Notes batches while it is switched on. Forgets them once they are taken for a comparison.

    Args:
      in_own_folders: whether texts may be paths of files that each worker has in a folder of its
        own. Only the names of the files are compared then.
    """

    def __init__(self, *, in_own_folders: bool = False) -> None:
        self._on = False
        self._in_own_folders = in_own_folders
        self._rows: dict[tuple[int, int], list[float]] = {}
        self._width = 0
        """Width of a row: the same on all workers, known from the first batch, noted or not."""

    def switch(self, on: bool) -> None:
        """Switches noting on or off. It is off while there is no other worker to compare with."""
        self._on = on
        if not on:
            self._rows.clear()

    def note(self, number: int, position: int, batch: Structure) -> None:
        """Notes the batch at a position of a pass."""
        if not self._on and self._width:
            return
        row = description(batch, in_own_folders=self._in_own_folders)
        self._width = 2 + len(row)
        if self._on:
            self._rows[number, position] = row

    def take(self) -> Rows:
        """Returns the rows noted since the last call; one row without a batch if there are none."""
        rows = [[number, position, *row] for (number, position), row in self._rows.items()]
        self._rows.clear()
        nothing = [[NO_BATCH] * max(self._width, LEAST_WIDTH)]
        return np.array(rows or nothing, np.float64)


def description(batch: Structure, *, in_own_folders: bool = False) -> list[float]:
    """Describes a batch in a few numbers, from a sample of each tensor.

    The sample is every n-th number of a tensor, so that it reaches to the end of the batch.

    Args:
      in_own_folders: see `BatchLog`.
    """
    leaves = tf.nest.flatten(batch, expand_composites=True)
    checksum = 0
    sums: list[float] = []
    for leaf in leaves:
        if leaf is None:
            continue
        checksum = zlib.crc32(repr(leaf.shape.as_list()).encode(), checksum)
        if leaf.dtype == tf.string:
            for text in _texts(leaf):
                is_path = in_own_folders and len(text) <= LONGEST_PATH
                checksum = zlib.crc32(text.rpartition(b"/")[2] if is_path else text, checksum)
            sums += [0.0, 0.0]
        else:
            sums += _sums(np.asarray(leaf).reshape(-1))
    return [float(checksum), *sums]


def _texts(leaf: Any) -> list[bytes]:
    some = leaf[:: _stride(int(leaf.shape[0]), SAMPLED_TEXTS)].numpy().reshape(-1)
    return list(some[:: _stride(some.size, SAMPLED_TEXTS)])


def _stride(size: int, most: int) -> int:
    """Returns an odd stride, so that samples do not always fall on the same channel or column."""
    return -(-size // most) | 1 if size > most else 1


_WEIGHTS = np.cos(np.arange(SAMPLED, dtype=np.float64))


def _sums(flat: Any) -> list[float]:
    """Returns the sum of |x[i]| and the sum of x[i] cos(i)."""
    sample = flat[:: _stride(flat.size, SAMPLED)].astype(np.float64)
    return [float(np.abs(sample).sum()), float(np.dot(sample, _WEIGHTS[: sample.size]))]


def first_difference(rows: Sequence[Rows]) -> Difference | None:
    """Returns the first batch that workers have noted differently; None if there is none.

    Args:
      rows: the rows of each worker, by rank. A batch that only one worker has noted is ignored.
    """
    found: dict[tuple[float, float], list[tuple[int, Any]]] = {}
    for rank, mine in enumerate(rows):
        for row in mine:
            if row[0] != NO_BATCH:
                found.setdefault((row[0], row[1]), []).append((rank, row[2:]))
    for (number, position), notes in sorted(found.items(), key=lambda item: item[0]):
        groups: list[list[tuple[int, Any]]] = []
        for note in notes:
            group = next((g for g in groups if _same(g[0][1], note[1])), None)
            if group is None:
                groups.append([note])
            else:
                group.append(note)
        if len(groups) > 1:
            return Difference(int(number), int(position), _outnumbered(groups))
    return None


def _outnumbered(groups: list[list[tuple[int, Any]]]) -> tuple[int, ...]:
    sizes = Counter(len(group) for group in groups)
    most = max(sizes)
    if sizes[most] > 1:
        return ()
    odd = (group for group in groups if len(group) < most)
    return tuple(sorted(rank for rank, _ in itertools.chain.from_iterable(odd)))


def _same(a: Any, b: Any) -> bool:
    if a[0] != b[0]:
        return False
    scales = np.maximum(a[1::2], b[1::2]).repeat(2)
    with np.errstate(invalid="ignore"):
        near = np.abs(a[1:] - b[1:]) <= TOLERANCE * scales
    return bool(np.all(near | (a[1:] == b[1:]) | (np.isnan(a[1:]) & np.isnan(b[1:]))))
