"""The term of a master: its number, and the journal of its decisions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hvd_elastic_keras.common import files
from hvd_elastic_keras.master.journal import NO_SOURCES, Journal
from hvd_elastic_keras.master.machine.decisions import Decisions
from hvd_elastic_keras.observe.console import Console


class Term:
    """One master's time at a job directory.

    Args:
      known: the newest term that the checkpoints of the directory name. They may have been copied
        there.
      sources: for each flag, where its value in `command` came from.

    Attributes:
      number: the number of the term; it grows with each master of the directory.
      before: the decisions of the previous master, if its job has not ended; None otherwise, and
        after `begin_anew`.
      left: the same decisions; `begin_anew` keeps them here.
      journal_problem: see `Journal.problem`.
      original: the directory from which this one was copied; empty if it is no copy.
      trouble: why the last write to the journal failed; empty if it succeeded.
      most_lost: see `Journal.most_lost`.
    """

    def __init__(
        self,
        job_dir: Path,
        command: tuple[str, ...],
        console: Console,
        known: int = 0,
        sources: Mapping[str, str] = NO_SOURCES,
    ) -> None:
        self._journal = Journal(job_dir / files.JOURNAL)
        self.journal_problem = self._journal.problem
        self._command = command
        self._sources = sources
        self._console = console
        self.trouble = ""
        last = self._journal.last
        self.number = 1 + max(known, last.term if last else 0)
        self.before: Decisions | None = None
        self.command_before = last.command if last else ()
        self.sources_before = last.sources if last else {}
        if last and not last.decisions.ended:
            self.before = last.decisions
        self.left = self.before
        is_copy = last and files.is_copy(job_dir, last.job_dir)
        self.original = last.job_dir if last and is_copy else ""
        self.most_lost = self._journal.most_lost

    def begin_anew(self) -> None:
        """Begins a new job: only files are left of the previous master's job."""
        self.before = None

    def keep(self, decisions: Decisions) -> None:
        """Writes decisions to the journal. Nothing that follows from them may be published before.

        If the last write failed, for example because the disk was full, this one begins a new
        journal. Its first entry holds all decisions.
        """
        try:
            self._journal.write(self.number, self._command, decisions, self._sources)
        except OSError as error:
            known, self.trouble = self.trouble, _told(error)
            if not known:
                self._console.line(f"warning: {self.trouble}.")
        else:
            if self.trouble:
                self.trouble = ""
                self._console.line(
                    "the journal is written again: if this launcher is killed, its workers can be "
                    "taken over"
                )

    def close(self) -> None:
        """Closes the journal."""
        self._journal.close()


def _told(error: OSError) -> str:
    return (
        f"the journal cannot be written ({error.strerror}). If this launcher is killed before it "
        "can, its workers cannot be taken over: the job goes on from its newest checkpoint"
    )
