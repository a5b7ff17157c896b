"""The ledger of an epoch: which worker used which examples in which step, and what follows.

A ledger is a file of JSON lines, one per finished step, written while training goes on; see `Step`,
`Resumed` and `Closed`. Ids of examples are kept as Roaring bitmaps (Lemire et al., "Roaring
Bitmaps: Implementation of an Optimized Software Library", 2018), a few bytes per example.

Nothing here needs TensorFlow: `ctl audit` judges ledgers, too.
"""

from __future__ import annotations

import base64
import binascii
import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from pyroaring import BitMap, BitMap64

from hvd_elastic_keras.console import counted
from hvd_elastic_keras.errors import LedgerError

Ids = npt.NDArray[np.int64]
BATCH_STRIDE = 2**32
"""Where data come in batches of the user's, an id is batch number * BATCH_STRIDE + place in it."""
NARROW, WIDE = "n", "w"
PIECES = 8
PIECE_BITS = 8
MOST_LISTED = 10
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
      verdict: what `judge` says, for people.
    """

    first_step: int
    steps: int
    whole: bool
    expected: str = ""
    verdict: str = ""


Line = Step | Resumed | Closed


def packed(ids: Iterable[int]) -> str:
    """A set of ids as text: a Roaring bitmap in base 64, of 32 bits where these suffice."""
    bitmap: BitMap | BitMap64
    mark = NARROW
    if isinstance(ids, BitMap64):  # perhaps a whole epoch: making another one would take seconds
        bitmap, mark = ids, WIDE
    else:
        numbers = ids.tolist() if isinstance(ids, np.ndarray) else ids
        try:
            bitmap = BitMap(numbers)
        except OverflowError:
            bitmap, mark = BitMap64(numbers), WIDE
    bitmap.run_optimize()
    return mark + base64.b64encode(bitmap.serialize()).decode()


def unpacked(text: str) -> BitMap64:
    """What `packed` made.

    Raises:
      LedgerError: it did not make this.
    """
    try:
        content = base64.b64decode(text[1:], validate=True)
        if text[:1] == NARROW:
            return BitMap64(BitMap.deserialize(content))
        return BitMap64.deserialize(content)
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


# --- judging ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Account:
    """What a ledger says of an epoch.

    Attributes:
      steps: that count, in order.
      examples: computed, by worker id.
      missing, repeated, unknown: ids that should have been used, were used more than once, or do
        not belong to the epoch.
      disputed: steps in which the workers read other examples than they should have.
      unrecorded: steps of the epoch that have no line.
      end: how the epoch ended, if it has.
    """

    steps: Sequence[int]
    examples: Mapping[str, int]
    missing: BitMap64
    repeated: BitMap64
    unknown: BitMap64
    disputed: Sequence[int]
    unrecorded: Sequence[int] = ()
    end: Closed | None = None

    @property
    def is_exact(self) -> bool:
        """Whether every example was used exactly once, as far as the epoch went."""
        wrong = (self.missing, self.repeated, self.unknown, self.disputed, self.unrecorded)
        return not any(wrong)

    @property
    def verdict(self) -> str:
        """In words."""
        if self.is_exact and self.end is None:
            return "no example twice so far; the epoch has not ended"
        if self.is_exact and self.end and not self.end.whole:
            return "no example twice; the epoch ended before its data"
        if self.is_exact:
            return "every example exactly once"
        found = (("missing", self.missing), ("repeated", self.repeated), ("unknown", self.unknown))
        parts = [f"{len(ids)} {name}: {listed(ids)}" for name, ids in found if ids]
        if self.disputed:
            steps = listed(BitMap64(self.disputed))
            parts.append(f"other examples were read than planned in step {steps}")
        if self.unrecorded:
            parts.append(f"no record of step {listed(BitMap64(self.unrecorded))}")
        return "; ".join(parts)

    @property
    def summary(self) -> str:
        """The verdict with what it is about."""
        workers = ", ".join(f"{worker} {count}" for worker, count in sorted(self.examples.items()))
        total = sum(self.examples.values())
        work = f"{counted(total, 'example')} in {counted(len(self.steps), 'step')}"
        return f"{work} ({workers}): {self.verdict}"


def judge(lines: Iterable[Line]) -> Account:
    """Takes the lines of an epoch together, in the order in which they were written.

    Raises:
      LedgerError: a line is damaged.
    """
    steps, closed = counting(lines)
    seen, repeated = BitMap64(), BitMap64()
    examples: collections.Counter[str] = collections.Counter()
    disputed = []
    for number, step in sorted(steps.items()):
        parts = {worker: unpacked(text) for worker, text in step.ids.items()}
        for worker, ids in parts.items():
            repeated |= seen & ids
            seen |= ids
            examples[worker] += len(ids)
        # A set cannot show that a worker used an example twice within one step.
        if not step.agreed or sum(map(len, parts.values())) != step.examples:
            disputed.append(number)
    expected = unpacked(closed.expected) if closed and closed.expected else seen
    first, count = (closed.first_step, closed.steps) if closed else _span(steps)
    return Account(
        steps=sorted(steps),
        examples=examples,
        missing=expected - seen,
        repeated=repeated,
        unknown=seen - expected,
        disputed=disputed,
        unrecorded=sorted(set(range(first, first + count)) - set(steps)),
        end=closed,
    )


def counting(lines: Iterable[Line]) -> tuple[dict[int, Step], Closed | None]:
    """The steps that count, by number, and the end of the epoch if it comes after all of them."""
    steps: dict[int, Step] = {}
    closed: Closed | None = None
    for line in lines:
        if isinstance(line, Step):
            steps[line.step], closed = line, None
        elif isinstance(line, Closed):
            closed = line
        elif any(number >= line.step for number in steps):
            steps = {number: step for number, step in steps.items() if number < line.step}
            closed = None
    return steps, closed


def _span(steps: Iterable[int]) -> tuple[int, int]:
    """The first step, and how many there are up to the last one."""
    numbers = sorted(steps)
    return (numbers[0], numbers[-1] - numbers[0] + 1) if numbers else (0, 0)


def listed(ids: BitMap64) -> str:
    """Ids as ranges, the first ones of many.

    >>> listed(BitMap64([3, 4, 5, 9])), listed(BitMap64([BATCH_STRIDE * 2 + 5]))
    ('3-5, 9', '5 of batch 2')
    """
    ranges: list[list[int]] = []
    for number in ids:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        elif len(ranges) == MOST_LISTED:
            return f"{_listed(ranges)}, …"
        else:
            ranges.append([number, number])
    return _listed(ranges)


def _listed(ranges: Sequence[Sequence[int]]) -> str:
    return ", ".join(_name(first, last) for first, last in ranges)


def _name(first: int, last: int) -> str:
    batch, place = divmod(first, BATCH_STRIDE)
    text = f"{place}" if first == last else f"{place}-{last % BATCH_STRIDE}"
    return f"{text} of batch {batch}" if batch else text


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


def read(path: Path) -> list[Line]:
    """All whole lines of a ledger. A last one without its end is of a writer that was killed.

    Raises:
      LedgerError: there is no such file, or something else is in it.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise LedgerError(f"{path} cannot be read: {error.strerror}.") from error
    lines = content.split(b"\n")[:-1]
    try:
        return [_DECODER.decode(line) for line in lines]
    except msgspec.DecodeError as error:
        raise LedgerError(f"{path} is damaged: {error}.") from error


_DECODER: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Step | Resumed | Closed)
