"""The entries of a job's `events.jsonl`, and the lines that are none."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

from hvd_elastic_keras.common import events, json_text


@dataclasses.dataclass(frozen=True)
class JobEvents:
    """What stands in the file.

    Attributes:
      entries: in their order.
      unreadable: numbers of the other lines, from 1. What a killed launcher has left of its last
        line is not among them.
    """

    entries: tuple[events.AnyEntry, ...]
    unreadable: tuple[int, ...]


def read(path: Path) -> JobEvents:
    """Reads the file; one that does not exist holds nothing."""
    lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
    # After the last end of a line: what is being written, or what a killed writer has begun.
    found = [_entry(line) for line in lines[:-1]]
    return JobEvents(tuple(e for e in found if e is not None), tuple(_unreadable(found)))


def _unreadable(found: Sequence[events.AnyEntry | None]) -> Iterable[int]:
    for number, entry in enumerate(found, 1):
        # A launcher that starts ends the line that a killed one has begun.
        if entry is None and not _starts_a_run(found[number:]):
            yield number


def _starts_a_run(following: Iterable[events.AnyEntry | None]) -> bool:
    """Whether a launcher has, maybe after what its check of the model has found."""
    after_check = itertools.dropwhile(lambda e: isinstance(e, events.RecordsSkipped), following)
    return isinstance(next(after_check, None), events.JobStarted | events.MasterRestarted)


def _entry(line: bytes) -> events.AnyEntry | None:
    try:
        content = json_text.loads(line)
    except ValueError:
        return None
    return events.parse(content) if isinstance(content, dict) else None
