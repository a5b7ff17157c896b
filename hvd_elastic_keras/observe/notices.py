"""Notices from the input to people: long waits, records that are left out."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tqdm.std import tqdm

from hvd_elastic_keras.common import events

log = logging.getLogger(__name__)
LINE_INTERVAL_S = 2.0
"""Work that takes longer than this shows its progress, in lines this far apart."""


@dataclasses.dataclass(frozen=True)
class Notice:
    """A line for people, and the entry that the job's event log keeps of it.

    `once` is false if the same line from another worker tells people something new. `of_worker` is
    false if the line is about the script, which is the same in all workers.
    """

    text: str
    entry: events.WorkerEntry | None = None
    once: bool = True
    of_worker: bool = True


class _Notices:
    """The notices of this process, which are kept until a reporter can show them."""

    def __init__(self) -> None:
        self._reporter: Callable[[Notice], None] | None = None
        self._waiting: list[Notice] = []
        self._told: set[str] = set()

    def tell(self, text: str, entry: events.WorkerEntry | None = None) -> None:
        """Shows a notice and writes it to the log."""
        self._take(Notice(text, entry))

    def tell_once(self, text: str) -> None:
        """Shows a notice about the script unless this process has told the same one before."""
        for new in self.untold([text]):
            self._take(Notice(new, of_worker=False))

    def untold(self, texts: Iterable[str]) -> list[str]:
        """Returns the texts that this process has not told yet, and notes that it tells them."""
        new = [text for text in texts if text not in self._told]
        self._told.update(new)
        return new

    def tell_progress(self, text: str) -> None:
        """Shows the progress of some work of this process, and writes it to the log."""
        self._take(Notice(text, once=False))

    def _take(self, notice: Notice) -> None:
        log.info("%s", notice.text)
        if self._reporter is None:
            self._waiting.append(notice)
        else:
            self._reporter(notice)

    def report_to(self, reporter: Callable[[Notice], None] | None) -> list[Notice]:
        """Sets the function that shows notices from now on; returns the notices not yet shown."""
        self._reporter = reporter
        waiting, self._waiting = self._waiting, []
        return waiting

    @contextlib.contextmanager
    def printed(self) -> Iterator[None]:
        """Prints notices in a `with` block, unless a reporter shows them."""
        if self._reporter is not None:
            yield
            return
        for notice in self.report_to(lambda notice: print(notice.text)):
            print(notice.text)
        try:
            yield
        finally:
            self.report_to(None)


notices = _Notices()


class _Lines:
    """A stream that takes what a progress bar draws, and tells it in lines."""

    def write(self, text: str) -> None:
        """Takes one drawing of the bar."""
        line = text.strip()
        if line:
            notices.tell_progress(line)

    def flush(self) -> None:
        """Does nothing: nothing is held back."""


class _Bar(tqdm):  # type: ignore[misc]
    monitor_interval = 0  # no thread


def progress(what: str, total: int, unit: str, scale: bool = False) -> Any:
    """Returns a `tqdm` that tells its state in a line every two seconds.

    It tells nothing if it is done sooner.

    Args:
      what: what is being done.
      scale: whether to show large numbers as 1.2G.
    """
    form = "{desc}: {n_fmt} of {total_fmt} {unit} ({percentage:.0f}%), {remaining} left"
    return _bar(what, total, unit, scale, form)


def counter(what: str, unit: str) -> Any:
    """Returns the same as `progress`, for work of unknown length."""
    return _bar(what, None, unit, False, "{desc}: {n_fmt} {unit} so far")


def _bar(what: str, total: int | None, unit: str, scale: bool, form: str) -> Any:
    return _Bar(
        desc=what,
        total=total,
        unit=unit,
        unit_scale=scale,
        bar_format=form,
        mininterval=LINE_INTERVAL_S,
        miniters=0,
        delay=LINE_INTERVAL_S,
        leave=False,
        file=_Lines(),
    )


def counted_places(places: Iterable[str], most: int) -> str:
    """Lists the first `most` places for a message, and counts the others.

    >>> counted_places(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    listed = list(places)
    shown, more = listed[:most], len(listed) - most
    return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")
