"""The ledger of an epoch: which worker used which examples in which step.

A ledger is a file of JSON lines, one per finished step, written while training goes on. Its lines
are of the types `Step`, `Resumed` and `Closed`. `audit/verdict.py` judges them.

Nothing here needs TensorFlow: `ctl audit` reads ledgers, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.errors import LedgerError

BLOCK = 1 << 16
SUFFIX = ".jsonl"


class Step(msgspec.Struct, frozen=True, tag="step"):
    """A finished step.

    Attributes:
      step: number of the optimizer step, from 0.
      round: the round in which the step was taken.
      examples: number of examples in the global batch.
      ids: worker id to the examples that it computed, as `example_ids.packed`.
      agreed: whether all workers together read exactly these examples; see `example_ids.digest`.
    """

    step: int
    round: int
    examples: int
    ids: dict[str, str]
    agreed: bool


class Resumed(msgspec.Struct, frozen=True, tag="resumed"):
    """Training went on from a checkpoint. Earlier lines about `step` and later steps are void."""

    step: int


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    """The end of an epoch.

    Attributes:
      first_step, steps: number of its first optimizer step, and how many it took.
      whole: whether the epoch ended because the data ended, not because the training ended.
      expected: the examples that the epoch had to use, as `example_ids.packed`; empty if only its
        steps tell them.
      verdict: the verdict of `verdict.judge`, for people; in a line of its own, written later.
    """

    first_step: int
    steps: int
    whole: bool
    expected: str = ""
    verdict: str = ""


Line = Step | Resumed | Closed


def file_of(directory: Path, epoch: int) -> Path:
    """Returns the ledger of an epoch (from 0). File names count from 1, as people do.

    >>> file_of(Path("ledger"), 0).name
    'epoch-0001.jsonl'
    """
    return directory / f"epoch-{epoch + 1:04d}{SUFFIX}"


def epochs_in(directory: Path) -> list[Path]:
    """Returns the ledgers in a directory, in order; none if it does not exist."""
    return sorted(directory.glob(f"epoch-*{SUFFIX}"), key=epoch_of)


def epoch_of(path: Path) -> int:
    """Returns the epoch (from 0) of a ledger, from its file name.

    >>> epoch_of(Path("ledger/epoch-0012.jsonl"))
    11
    """
    number = path.stem.removeprefix("epoch-")
    return int(number) - 1 if number.isdecimal() else -1


def encode(line: Line) -> bytes:
    """Serialises one line."""
    return msgspec.json.encode(line) + b"\n"


class LinesOf:
    """The whole lines of a ledger. Each iteration reads the file again, line by line.

    A last line without its end is left out: its writer was killed.

    Raises (during an iteration):
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
    """Returns the whole lines at the end of a ledger that tell of `step` and later steps.

    Returns none without a file. Takes no longer for a long ledger than for a short one. Where
    writing had failed for a time, lines about later steps may be followed by an earlier step. Such
    lines are left out.

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
        with files.only_value_errors():
            return _DECODER.decode(line)
    except ValueError as error:
        raise LedgerError(f"{path} is damaged: {error}.") from error


def _pieces_backwards(file: BinaryIO) -> Iterator[bytes]:
    """Yields the pieces between line ends, the last piece first.

    The first piece is the text after the last line end, which may be empty.
    """
    rest = b""
    for _, block in blocks_backwards(file):
        rest, *pieces = (block + rest).split(b"\n")
        yield from reversed(pieces)
    yield rest


def blocks_backwards(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yields the beginning of each block of a file, and the block; the last block first."""
    end = file.seek(0, 2)
    while end:
        start = max(0, end - BLOCK)
        file.seek(start)
        yield start, file.read(end - start)
        end = start


_DECODER: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Step | Resumed | Closed)
