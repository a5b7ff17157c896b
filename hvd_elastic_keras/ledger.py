"""The ledger of an epoch: which worker used which examples in which step, and what follows.

A ledger is a file of JSON lines, one per finished step, written while training goes on; see `Step`,
`Resumed` and `Closed`; `account.py` judges them. Ids of examples are kept as Roaring bitmaps
(Lemire et al., "Roaring Bitmaps: Implementation of an Optimized Software Library", 2018), a few
bytes per example.

Nothing here needs TensorFlow: `ctl audit` reads ledgers, too.
"""

from __future__ import annotations

import base64
import binascii
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt
from pyroaring import BitMap, BitMap64

from hvd_elastic_keras.errors import LedgerError

Ids = npt.NDArray[np.int64]
IdSet = BitMap | BitMap64
BATCH_STRIDE = 2**32
"""Where data come in batches of the user's, an id is batch number * BATCH_STRIDE + place in it."""
NARROW, WIDE = "n", "w"
PIECES = 8
PIECE_BITS = 8
BLOCK = 1 << 16
SUFFIX = ".jsonl"


class Step(msgspec.Struct, frozen=True, tag="step"):
    """A finished step.

    Attributes:
      step: number of the optimizer step, from 0.
      round: in which it was taken.
      examples: of the global batch.
      ids: worker id to the examples it computed, as `packed`.
      agreed: whether the workers, all together, have read exactly these: see `digest`.
    """

    step: int
    round: int
    examples: int
    ids: dict[str, str]
    agreed: bool


class Resumed(msgspec.Struct, frozen=True, tag="resumed"):
    """Training went on from a checkpoint: what was written before for `step` and later is void."""

    step: int


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    """The end of an epoch.

    Attributes:
      first_step, steps: number of its first optimizer step, and how many it took.
      whole: whether the data ended, not the training.
      expected: the examples that it had to use, as `packed`; empty if only its steps tell.
      verdict: what `account.judge` says, for people; in a line of its own, which comes later.
    """

    first_step: int
    steps: int
    whole: bool
    expected: str = ""
    verdict: str = ""


Line = Step | Resumed | Closed


def id_set(ids: Iterable[int]) -> IdSet:
    """A bitmap of 32 bits where these suffice: it is several times faster than one of 64."""
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
    """A set of ids as text: a Roaring bitmap in base 64."""
    bitmap = id_set(ids)
    bitmap.run_optimize()
    mark = NARROW if isinstance(bitmap, BitMap) else WIDE
    return mark + base64.b64encode(bitmap.serialize()).decode()


def difference(first: IdSet, second: IdSet) -> IdSet:
    """The ids of the first set that are not in the second one."""
    if isinstance(first, BitMap) and isinstance(second, BitMap):
        return first - second
    return wide(first) - wide(second)


def wide(ids: IdSet) -> BitMap64:
    """The same ids in 64 bits."""
    return ids if isinstance(ids, BitMap64) else BitMap64(ids)


def unpacked(text: str) -> IdSet:
    """What `packed` made.

    Raises:
      LedgerError: it did not make this.
    """
    try:
        content = base64.b64decode(text[1:], validate=True)
        return (BitMap if text[:1] == NARROW else BitMap64).deserialize(content)
    except (ValueError, IndexError, binascii.Error) as error:
        raise LedgerError(f"{text[:40]!r} is not a set of examples.") from error


# --- what workers tell each other ------------------------------------------------------------


def digest(ids: Ids) -> int:
    """A number below 2**64 for a bag of ids; digests of parts add up, modulo 2**64.

    The sum of a mixing function of each id (splitmix64: Steele et al., "Fast Splittable
    Pseudorandom Number Generators", 2014), so that other ids have another digest but by a chance
    of 2**-64.
    """
    with np.errstate(over="ignore"):
        z = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return int(np.sum(z ^ (z >> np.uint64(31)), dtype=np.uint64))


def pieces(value: int) -> list[int]:
    """A digest in numbers so small that sums over 65,536 workers are exact in float32."""
    mask = 2**PIECE_BITS - 1
    return [value >> (PIECE_BITS * i) & mask for i in range(PIECES)]


def digest_of_sums(sums: Sequence[float]) -> int:
    """The digest of all workers' ids from the sums of their `pieces`."""
    return sum(int(s) << (PIECE_BITS * i) for i, s in enumerate(sums)) % 2**64


# --- files -----------------------------------------------------------------------------------


def file_of(directory: Path, epoch: int) -> Path:
    """The ledger of an epoch (from 0); names begin with epoch 1, as people count.

    >>> file_of(Path("ledger"), 0).name
    'epoch-0001.jsonl'
    """
    return directory / f"epoch-{epoch + 1:04d}{SUFFIX}"


def epochs_in(directory: Path) -> list[Path]:
    """The ledgers in a directory, in order; none if it does not exist."""
    return sorted(directory.glob(f"epoch-*{SUFFIX}"), key=epoch_of)


def epoch_of(path: Path) -> int:
    """The epoch (from 0) of a ledger, from its name.

    >>> epoch_of(Path("ledger/epoch-0012.jsonl"))
    11
    """
    number = path.stem.removeprefix("epoch-")
    return int(number) - 1 if number.isdecimal() else -1


def encode(line: Line) -> bytes:
    """One line."""
    return msgspec.json.encode(line) + b"\n"


class LinesOf:
    """The whole lines of a ledger, read one by one each time they are gone through.

    A last one without its end is of a writer that was killed.

    Raises (while they are gone through):
      LedgerError: there is no such file, or something else is in it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __iter__(self) -> Iterator[Line]:
        try:
            with self._path.open("rb") as file:
                for line in file:
                    if line.endswith(b"\n"):
                        yield _decoded(line, self._path)
        except OSError as error:
            raise LedgerError(f"{self._path} cannot be read: {error.strerror}.") from error


def lines_from(path: Path, step: int) -> list[Line]:
    """Those of the last whole lines that tell of `step` and later ones; none without a file.

    Takes no longer for a long ledger than for a short one. Lines of later steps may be left out
    that come before an earlier step, where writing had failed for a time.

    Raises:
      LedgerError: something else is in the file.
    """
    found: list[Line] = []
    if not path.exists():
        return found
    with path.open("rb") as file:
        for content in itertools.islice(_pieces_backwards(file), 1, None):
            line = _decoded(content, path)
            if isinstance(line, Resumed) or (isinstance(line, Step) and line.step < step):
                break
            found.append(line)
    return found[::-1]


def _decoded(line: bytes, path: Path) -> Line:
    try:
        return _DECODER.decode(line)
    except msgspec.DecodeError as error:
        raise LedgerError(f"{path} is damaged: {error}.") from error


def _pieces_backwards(file: BinaryIO) -> Iterator[bytes]:
    """What line ends separate, from the back: first what comes after the last one, if anything."""
    rest = b""
    for _, block in blocks_backwards(file):
        rest, *pieces = (block + rest).split(b"\n")
        yield from reversed(pieces)
    yield rest


def blocks_backwards(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Where each block of a file begins, and the block; the last one first."""
    end = file.seek(0, 2)
    while end:
        start = max(0, end - BLOCK)
        file.seek(start)
        yield start, file.read(end - start)
        end = start


_DECODER: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Step | Resumed | Closed)
