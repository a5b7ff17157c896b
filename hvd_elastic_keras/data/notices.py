"""What the input wants people to know: long waits, records that are left out."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Protocol

from tqdm.std import tqdm

log = logging.getLogger(__name__)
LINE_INTERVAL_S = 2.0
"""Progress that takes longer is shown, a line at a time."""


class Reporter(Protocol):
    """Shows a notice to the user and keeps it with the job's events."""

    def __call__(self, text: str, event: str, fields: dict[str, Any]) -> None:
        """`event` is empty for what need not be kept."""


class _Notices:
    """The notices of this process: shown by whoever can, kept until then."""

    def __init__(self) -> None:
        self._reporter: Reporter | None = None
        self._waiting: list[tuple[str, str, dict[str, Any]]] = []

    def tell(self, text: str, event: str = "", **fields: Any) -> None:
        """Shows a notice; also in the log."""
        log.info("%s", text)
        if self._reporter is None:
            self._waiting.append((text, event, fields))
        else:
            self._reporter(text, event, fields)

    def report_to(self, reporter: Reporter | None, earlier: bool = True) -> None:
        """Whom to tell from now on, and whether of what has been told before, too."""
        self._reporter = reporter
        waiting, self._waiting = self._waiting, []
        if reporter is not None and earlier:
            for text, event, fields in waiting:
                reporter(text, event, fields)


notices = _Notices()


class _Lines:
    """Takes what a progress bar draws and tells it in lines."""

    def write(self, text: str) -> None:
        """One drawing of the bar."""
        line = text.strip()
        if line:
            notices.tell(line)

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
