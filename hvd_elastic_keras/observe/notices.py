"""What the input wants people to know: long waits, records that are left out."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable
from typing import Any

from tqdm.std import tqdm

from hvd_elastic_keras.common import events

log = logging.getLogger(__name__)
LINE_INTERVAL_S = 2.0
"""Progress that takes longer is shown, a line at a time."""


@dataclasses.dataclass(frozen=True)
class Notice:
    """A line for people, and what the job's event log keeps of it.

    `once` is false if the same line of another worker tells people something new.
    """

    text: str
    entry: events.WorkerEntry | None = None
    once: bool = True


class _Notices:
    """The notices of this process: shown by whoever can, kept until then."""

    def __init__(self) -> None:
        self._reporter: Callable[[Notice], None] | None = None
        self._waiting: list[Notice] = []

    def tell(self, text: str, entry: events.WorkerEntry | None = None) -> None:
        """Shows a notice; also in the log."""
        self._take(Notice(text, entry))

    def tell_progress(self, text: str) -> None:
        """Shows how far this process is with something; also in the log."""
        self._take(Notice(text, once=False))

    def _take(self, notice: Notice) -> None:
        log.info("%s", notice.text)
        if self._reporter is None:
            self._waiting.append(notice)
        else:
            self._reporter(notice)

    def report_to(self, reporter: Callable[[Notice], None] | None) -> list[Notice]:
        """Says who shows notices from now on; returns those that nobody has shown."""
        self._reporter = reporter
        waiting, self._waiting = self._waiting, []
        return waiting


notices = _Notices()


class _Lines:
    """Takes what a progress bar draws and tells it in lines."""

    def write(self, text: str) -> None:
        """One drawing of the bar."""
        line = text.strip()
        if line:
            notices.tell_progress(line)

    def flush(self) -> None:
        """Nothing is held back."""


class _Bar(tqdm):  # type: ignore[misc]
    monitor_interval = 0  # no thread


def progress(what: str, total: int, unit: str, scale: bool = False) -> Any:
    """A `tqdm` that tells its state in a line every two seconds, and nothing if it is done sooner.

    Args:
      what: what is being done.
      scale: whether to show large numbers as 1.2G.
    """
    form = "{desc}: {n_fmt} of {total_fmt} {unit} ({percentage:.0f}%), {remaining} left"
    return _bar(what, total, unit, scale, form)


def counter(what: str, unit: str) -> Any:
    """As `progress`, where nobody knows how much there is."""
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
    """Some of many places, for a message.

    >>> counted_places(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    listed = list(places)
    shown, more = listed[:most], len(listed) - most
    return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")
