"""Judges by a ledger whether every example of its epoch was used exactly once."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from pyroaring import BitMap, BitMap64

from hvd_elastic_keras.audit.ledger_file import Closed, Line, Step
from hvd_elastic_keras.data.plan.example_ids import BATCH_STRIDE, IdSet, difference, unpacked, wide
from hvd_elastic_keras.observe.console import counted

MOST_LISTED = 10
AT_ONCE = 500
"""Steps that are judged together. No more of a ledger is in memory at a time."""
_Set = TypeVar("_Set", BitMap, BitMap64)


@dataclasses.dataclass(frozen=True)
class Account:
    """The account that a ledger gives of an epoch.

    Attributes:
      steps: numbers of the steps that count, in order.
      examples: number of examples computed, by worker id.
      missing, repeated, unknown: ids that should have been used, were used more than once, or do
        not belong to the epoch.
      disputed: steps in which the workers read other examples than they should have.
      unrecorded: steps of the epoch that have no line.
      end: how the epoch ended, if it has.
    """

    steps: Sequence[int]
    examples: Mapping[str, int]
    missing: IdSet
    repeated: IdSet
    unknown: IdSet
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
        """The verdict in words."""
        if self.is_exact and self.end is None:
            return "no example twice so far; the epoch has not ended"
        if self.is_exact and self.end and not self.end.whole:
            return "no example twice; the epoch ended before its data"
        if self.is_exact:
            return "every example exactly once"
        found = (("missing", self.missing), ("repeated", self.repeated), ("unknown", self.unknown))
        parts = [f"{len(ids)} {name}: {listed(ids)}" for name, ids in found if ids]
        if self.disputed:
            steps = listed(self.disputed)
            parts.append(f"other examples were read than planned in step {steps}")
        if self.unrecorded:
            parts.append(f"no record of step {listed(self.unrecorded)}")
        return "; ".join(parts)

    @property
    def summary(self) -> str:
        """The numbers of examples and steps, followed by the verdict."""
        workers = ", ".join(f"{worker} {count}" for worker, count in sorted(self.examples.items()))
        total = sum(self.examples.values())
        work = f"{counted(total, 'example')} in {counted(len(self.steps), 'step')}"
        return f"{work} ({workers}): {self.verdict}"


def judge(lines: Iterable[Line]) -> Account:
    """Returns the account of an epoch from its lines, in the order in which they were written.

    Args:
      lines: the lines, which are iterated twice and not kept; see `ledger_file.LinesOf`.

    Raises:
      LedgerError: a line is damaged.
    """
    places, closed = counting(lines)
    those_that_count = {place.line for place in places.values()}
    steps = (
        line
        for number, line in enumerate(lines)
        if number in those_that_count and isinstance(line, Step)
    )
    tally = _Tally()
    while chunk := list(itertools.islice(steps, AT_ONCE)):
        tally.add(chunk)
    seen, repeated = tally.result()
    expected = unpacked(closed.expected) if closed and closed.expected else seen
    first, count = (closed.first_step, closed.steps) if closed else _span(places)
    return Account(
        steps=sorted(places),
        examples=tally.examples,
        missing=difference(expected, seen),
        repeated=repeated,
        unknown=difference(seen, expected),
        disputed=sorted(tally.disputed),
        unrecorded=sorted(set(range(first, first + count)) - set(places)),
        end=closed,
    )


class Place(NamedTuple):
    """The place of a step: the number of its line in the ledger, and its round."""

    line: int
    round: int


def counting(lines: Iterable[Line]) -> tuple[dict[int, Place], Closed | None]:
    """Returns the steps that count, by number, and the epoch's end if it comes after all steps."""
    steps: dict[int, Place] = {}
    closed: Closed | None = None
    for number, line in enumerate(lines):
        if isinstance(line, Step):
            steps[line.step], closed = Place(number, line.round), None
        elif isinstance(line, Closed):
            closed = line
        elif any(step >= line.step for step in steps):
            steps = {step: place for step, place in steps.items() if step < line.step}
            closed = None
    return steps, closed


class _Tally:
    """Counts used examples, many steps at once: one by one would take ten times as long."""

    def __init__(self) -> None:
        self.examples: collections.Counter[str] = collections.Counter()
        self.disputed: list[int] = []
        self._narrow, self._wide, self._repeated = BitMap(), BitMap64(), BitMap64()

    def add(self, steps: Iterable[Step]) -> None:
        """Adds steps, none of which was added before."""
        narrow: list[BitMap] = []
        wide: list[BitMap64] = []
        for step in steps:
            count = 0
            for worker, text in step.ids.items():
                ids = unpacked(text)
                if isinstance(ids, BitMap):
                    narrow.append(ids)
                else:
                    wide.append(ids)
                self.examples[worker] += len(ids)
                count += len(ids)
            # A set cannot show that a worker used an example twice within one step.
            if not step.agreed or count != step.examples:
                self.disputed.append(step.step)
        self._narrow = self._with(self._narrow, narrow)
        self._wide = self._with(self._wide, wide)

    def result(self) -> tuple[IdSet, IdSet]:
        """Returns all ids that were used, and the ids that were used more than once."""
        if not self._wide:
            return self._narrow, self._repeated
        narrow = wide(self._narrow)
        return self._wide | narrow, self._repeated | (self._wide & narrow)

    def _with(self, seen: _Set, parts: Sequence[_Set]) -> _Set:
        if not parts:
            return seen
        union = type(seen).union(*parts)
        if len(union) == sum(map(len, parts)) and seen.isdisjoint(union):
            return seen | union
        for part in parts:
            self._repeated |= wide(seen & part)
            seen = seen | part
        return seen


def _span(steps: Iterable[int]) -> tuple[int, int]:
    """Returns the first step, and how many steps there are up to the last one."""
    numbers = sorted(steps)
    return (numbers[0], numbers[-1] - numbers[0] + 1) if numbers else (0, 0)


def listed(ids: Iterable[int]) -> str:
    """Returns ids as ranges in words; only the first ranges if there are many.

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
