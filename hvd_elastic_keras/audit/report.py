"""Judges all ledgers of a job, and names the ledgers that are missing."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from hvd_elastic_keras.audit import job_events, ledger_file
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
    happened = job_events.read(job_dir / files.EVENTS)
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
