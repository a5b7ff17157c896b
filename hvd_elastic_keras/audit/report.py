"""Judges all ledgers of a job, and names the ledgers that are missing, by the events of the job."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from hvd_elastic_keras.audit import ledger_file
from hvd_elastic_keras.audit.verdict import judge, listed
from hvd_elastic_keras.common import events, files
from hvd_elastic_keras.common.errors import ConfigurationError, LedgerError


@dataclasses.dataclass(frozen=True)
class Finding:
    """A line of `ctl audit`, and whether it says that all is well."""

    text: str
    good: bool


def findings(job_dir: Path) -> Iterator[Finding]:
    """Yields what the ledgers of all trainings of a job say, and which ledgers are missing.

    The first findings name lines of the job's events that cannot be read: these lines may have told
    of more ledgers.

    Raises:
      ConfigurationError: there are no ledgers, and none was to be written.
    """
    happened = read(job_dir / files.EVENTS)
    for line in happened.unreadable:
        yield Finding(
            f"{files.EVENTS}, line {line}: cannot be read: damaged, or of another release",
            good=False,
        )
    ended = ended_epochs(happened.entries)
    directories = [job_dir, *sorted(job_dir.glob(files.training_dir(Path(), 2).name[:-1] + "*"))]
    by_directory = {d: ledger_file.epochs_in(d / files.LEDGER) for d in directories}
    for number in ended:
        by_directory.setdefault(files.training_dir(job_dir, number), [])
    if not any(by_directory.values()) and not any(map(_is_audited, happened.entries)):
        raise ConfigurationError(
            f"There is no ledger in {job_dir}. Train with --audit, which writes one."
        )
    numbers = {files.training_dir(job_dir, number): number for number in ended}
    for directory, paths in by_directory.items():
        for path in paths:
            yield _judged(path, str(path.relative_to(job_dir)))
        epochs = {ledger_file.epoch_of(path) for path in paths}
        lacking = missing(epochs, ended.get(numbers.get(directory, 0), {}))
        if lacking:
            where = (directory / files.LEDGER).relative_to(job_dir)
            yield Finding(
                f"{where}: there is no ledger of epoch {listed(n + 1 for n in lacking)}", good=False
            )


def _judged(path: Path, name: str) -> Finding:
    try:
        account = judge(ledger_file.LinesOf(path))
    except LedgerError as error:
        return Finding(f"{name}: cannot be judged: {error}", good=False)
    return Finding(f"{name}: {account.summary}", account.is_exact)


def missing(there: set[int], ended: Mapping[int, bool]) -> list[int]:
    """Returns the epochs of a training that ought to have a ledger and have none.

    Args:
      there: epochs (from 0) that have a ledger.
      ended: epochs that have ended, and whether a ledger of each was written.
    """
    audited = {epoch for epoch, is_audited in ended.items() if is_audited}
    # Also epochs between two ledgers: where a disk was full, their events may be missing as well.
    between = range(min(there), max(there)) if there else ()
    without = {epoch for epoch, is_audited in ended.items() if not is_audited}
    return sorted((audited | set(between)) - without - there)


def ended_epochs(entries: Iterable[events.AnyEntry]) -> dict[int, dict[int, bool]]:
    """Returns by training (from 1): its ended epochs, and whether a ledger of each was written.

    If a training was taken up again from a step, epochs that had ended after it do not count.
    """
    steps: dict[int, dict[int, tuple[int, bool]]] = collections.defaultdict(dict)
    training = 1
    for entry in entries:
        match entry:
            case events.RoundRunning(training=training, step=begins):
                steps[training] = {e: end for e, end in steps[training].items() if end[0] <= begins}
            case events.EpochEnd(epoch=epoch, step=step, audited=audited):
                steps[training][epoch] = step, audited
    return {n: {e: audited for e, (_, audited) in ends.items()} for n, ends in steps.items()}


def _is_audited(entry: events.AnyEntry) -> bool:
    return isinstance(entry, events.EpochEnd) and entry.audited


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
        content = files.parse_json(line)
    except ValueError:
        return None
    return events.parse(content) if isinstance(content, dict) else None
