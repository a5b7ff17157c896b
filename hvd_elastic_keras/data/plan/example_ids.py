"""Sets of example ids: small in files, and compared between workers by a digest.

Ids are kept as Roaring bitmaps (Lemire et al., "Roaring Bitmaps: Implementation of an Optimized
Software Library", 2018), a few bytes per example.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap, BitMap64

from hvd_elastic_keras.common.errors import LedgerError

Ids = npt.NDArray[np.int64]
IdSet = BitMap | BitMap64
BATCH_STRIDE = 2**32
"""If the data are the user's batches, an id is batch number * BATCH_STRIDE + place in the batch."""
NARROW, WIDE = "n", "w"
PIECES = 8
PIECE_BITS = 8


def id_set(ids: Iterable[int]) -> IdSet:
    """Returns a bitmap. Uses 32 bits if they suffice: this is several times faster than 64."""
    if isinstance(ids, BitMap | BitMap64):
        return ids
    if isinstance(ids, range):  # BitMap takes any range, and crashes later (pyroaring 1.2)
        return (BitMap64 if ids and max(ids[0], ids[-1]) >= 2**32 else BitMap)(ids)
    numbers = ids.tolist() if isinstance(ids, np.ndarray) else ids
    try:
        return BitMap(numbers)
    except OverflowError:
        return BitMap64(numbers)


def packed(ids: Iterable[int]) -> str:
    """Returns a set of ids as text: a Roaring bitmap in base 64."""
    bitmap = id_set(ids)
    bitmap.run_optimize()
    mark = NARROW if isinstance(bitmap, BitMap) else WIDE
    return mark + base64.b64encode(bitmap.serialize()).decode()


def difference(first: IdSet, second: IdSet) -> IdSet:
    """Returns the ids of the first set that are not in the second one."""
    if isinstance(first, BitMap) and isinstance(second, BitMap):
        return first - second
    return wide(first) - wide(second)


def wide(ids: IdSet) -> BitMap64:
    """Returns the same ids in 64 bits."""
    return ids if isinstance(ids, BitMap64) else BitMap64(ids)


def unpacked(text: str) -> IdSet:
    """Returns the set of ids from which `packed` made this text.

    Raises:
      LedgerError: `packed` did not make this text.
    """
    try:
        content = base64.b64decode(text[1:], validate=True)
        return (BitMap if text[:1] == NARROW else BitMap64).deserialize(content)
    except (ValueError, IndexError, binascii.Error) as error:
        raise LedgerError(f"{text[:40]!r} is not a set of examples.") from error


# --- digests that workers exchange -----------------------------------------------------------


def digest(ids: Ids) -> int:
    """Returns a digest of a bag of ids, below 2**64. Digests of parts add up, modulo 2**64.

    The digest is the sum of a mixing function of each id (splitmix64: Steele et al., "Fast
    Splittable Pseudorandom Number Generators", 2014). Other ids have the same digest only with a
    probability of 2**-64.
    """
    with np.errstate(over="ignore"):
        z = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return int(np.sum(z ^ (z >> np.uint64(31)), dtype=np.uint64))


def pieces(value: int) -> list[int]:
    """Splits a digest into small numbers: sums of them over 65,536 workers are exact in float32."""
    mask = 2**PIECE_BITS - 1
    return [value >> (PIECE_BITS * i) & mask for i in range(PIECES)]


def digest_of_sums(sums: Sequence[float]) -> int:
    """Returns the digest of all workers' ids, from the sums of their `pieces`."""
    return sum(int(s) << (PIECE_BITS * i) for i, s in enumerate(sums)) % 2**64
