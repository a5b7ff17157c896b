"""Reads the entries of a job's `events.jsonl`, and finds the lines that are no entries."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

from hvd_elastic_keras.common import events, json_text


@dataclasses.dataclass(frozen=True)
class JobEvents:
    """The content of the file.

    Attributes:
      entries: the entries, in their order.
      unreadable: numbers of the other lines, from 1. The unfinished last line of a killed launcher
        is not among them.
    """

    entries: tuple[events.AnyEntry, ...]
    unreadable: tuple[int, ...]


def read(path: Path) -> JobEvents:
    """Reads the file; a file that does not exist is taken as empty."""
    lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
    # The text after the last line end is being written, or was begun by a killed writer.
    found = [_entry(line) for line in lines[:-1]]
    return JobEvents(tuple(e for e in found if e is not None), tuple(_unreadable(found)))


def _unreadable(found: Sequence[events.AnyEntry | None]) -> Iterable[int]:
    for number, entry in enumerate(found, 1):
        # A launcher that starts ends the line that a killed launcher has begun.
        if entry is None and not _starts_a_run(found[number:]):
            yield number


def _starts_a_run(following: Iterable[events.AnyEntry | None]) -> bool:
    """Whether a launcher starts next, maybe after entries from its check of the model."""
    after_check = itertools.dropwhile(lambda e: isinstance(e, events.RecordsSkipped), following)
    return isinstance(next(after_check, None), events.JobStarted | events.MasterRestarted)


def _entry(line: bytes) -> events.AnyEntry | None:
    try:
        content = json_text.loads(line)
    except ValueError:
        return None
    return events.parse(content) if isinstance(content, dict) else None
