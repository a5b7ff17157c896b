"""The launcher's terminal: lines that scroll, and below them the job's progress, drawn in place.

    epoch 16/400  ━━━━━━━━━━━━━━━━━━━╸━━━━━━━━━━━━━━━━━  7/12  1:31 left
    loss 0.0272  accuracy 0.9979 · 6,064 examples/s · 3 workers, 1 starting
    0:12 ago: 3 → 2 workers: w1 was killed by SIGKILL

`LiveRegion` makes the lines at the bottom. `rich` draws
(https://rich.readthedocs.io/en/stable/live.html), and respects `NO_COLOR`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from rich.cells import cell_len
from rich.console import Console as RichConsole
from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hvd_elastic_keras.common import events
from hvd_elastic_keras.common.protocol import Progress
from hvd_elastic_keras.observe import output
from hvd_elastic_keras.observe.console import (
    PREFIX,
    WARNING,
    Console,
    Verbosity,
    counted,
    format_duration,
    formatted_metrics,
)
from hvd_elastic_keras.settings.job_spec import EVALUATE, PREDICT, TRAIN

DRAWINGS_PER_S = 4
ECHO = 2
"""Columns that stay free: a terminal shows Ctrl-C as ^C there, which must not begin a line."""
EPOCH_LINES_S = 10.0
"""Seconds between two lines with the values of an epoch. The newest values are always drawn."""

STEADY = 0.9
"""The share of its old value that the speed shown keeps, so that people can read it."""
BETWEEN = "  "
CHECKS = {
    TRAIN: "checking what is to be trained",
    EVALUATE: "checking what is to be evaluated",
    PREDICT: "checking what is to be predicted",
}
"""By the kind of job: text for what the launcher does before it starts any worker."""


class _Terminal(RichConsole):
    """Never hides the cursor: a process that is killed cannot show it again."""

    def show_cursor(self, show: bool = True) -> bool:
        return False


class _Stream:
    """A terminal that may go away, while the training goes on."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        if not output.is_gone(self.stream):  # otherwise there is a file: nothing is drawn on it
            with contextlib.suppress(OSError, ValueError):
                return self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class _Live(Live):
    """Draws nothing while a terminal is stopped: it would show all of the drawings later."""

    def refresh(self) -> None:
        file: Any = self.console.file
        if not output.is_behind(file.stream):
            super().refresh()


class LiveConsole(Console):
    """Draws the progress on a terminal, and writes lines above it.

    Args:
      stream: the terminal.
      verbosity: how much people want to see.
      job: what the job does; see `LiveRegion`.
    """

    def __init__(self, stream: TextIO, verbosity: Verbosity, job: str = TRAIN) -> None:
        super().__init__(stream, verbosity)
        file: Any = _Stream(stream)
        self._terminal = _Terminal(file=file, force_terminal=True, highlight=False, markup=False)
        self._region = LiveRegion(time.time(), job)
        self._epoch_line_at = 0.0

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """Draws the progress inside the `with` block. Afterwards nothing of it is left."""
        live = _Live(
            console=self._terminal,
            get_renderable=self._picture,
            refresh_per_second=DRAWINGS_PER_S,
            transient=True,
            redirect_stdout=False,
            # Drawing must not cover what others write to the terminal. A file needs no redirection.
            redirect_stderr=sys.stderr.isatty(),
        )
        with live:
            yield

    def progress(self, progress: Progress, text: str) -> None:
        """Draws how far the training is."""
        self._region.take(progress)
        all_lines = self._verbosity is Verbosity.VERBOSE or output.is_gone(self._stream)
        if all_lines or (progress.ended and self._is_due(progress)):
            self.raw(text)

    def _is_due(self, progress: Progress) -> bool:
        """Whether the end of an epoch gets a line; the end of the last epoch always does."""
        now = time.monotonic()
        if progress.epoch != progress.epochs and now - self._epoch_line_at < EPOCH_LINES_S:
            return False
        self._epoch_line_at = now
        return True

    def hear(self, time_s: float, entry: events.Entry) -> None:
        """Takes an entry of the job and the time when it was written (seconds since 1970)."""
        self._region.hear(time_s, entry)

    def _picture(self) -> RenderableType:
        return self._region.picture(max(1, self._terminal.width - ECHO), time.time())

    def _write(self, text: str) -> None:
        if output.is_gone(self._stream):
            super()._write(text)
            return
        for line in text.splitlines():
            # The line may have any length, so that it can be copied: the terminal wraps it.
            self._terminal.print(_styled(line), soft_wrap=True)


def _styled(line: str) -> Text:
    """Keeps the colours that a worker has given the line, and no other terminal commands."""
    text = Text.from_ansi(line)
    if line.startswith(f"{PREFIX} "):
        text.stylize("dim", 0, len(PREFIX))
    if WARNING in line:
        text.stylize("yellow")
    return text


def console_for(verbosity: Verbosity, job: str = TRAIN) -> Console:
    """Returns the console of this process, which draws if stdout is a terminal that can.

    Args:
      job: what the job does; see `LiveRegion`.
    """
    stream = sys.stdout
    encoding = (stream.encoding or "").lower().replace("-", "")
    can_draw = stream.isatty() and encoding == "utf8" and not RichConsole().is_dumb_terminal
    if verbosity is Verbosity.QUIET or not can_draw:
        return Console(stream, verbosity)
    return LiveConsole(stream, verbosity, job)


@dataclasses.dataclass(frozen=True)
class Change:
    """The last change of the workers, or the change that happens now."""

    time_s: float
    text: str


class LiveRegion:
    """Collects what is known of a job, and draws it.

    Args:
      began_s: the time to count from, in seconds since 1970.
      job: what the job does, a value of `job_spec.JOBS`; "" if a script says so.
    """

    def __init__(self, began_s: float, job: str = TRAIN) -> None:
        self._began_s = began_s
        self._check = CHECKS.get(job, "starting")
        self._progress: Progress | None = None
        self._of_last_epoch: dict[str, float | None] = {}
        self._examples_per_s = 0.0
        self._left_s: float | None = None
        self._size = 0
        self._starting: set[str] = set()
        self._begun = self._running = False
        self._change: Change | None = None
        self._stopping = False

    def take(self, progress: Progress) -> None:
        """Takes the progress that rank 0 tells."""
        before, self._progress = self._progress, progress
        keeps = STEADY if before and before.workers == progress.workers else 0.0
        rate, left_s = progress.examples_per_s, progress.left_s
        self._examples_per_s = keeps * self._examples_per_s + (1 - keeps) * rate
        if left_s and self._left_s is not None:  # at the end, 0 is shown at once
            left_s = keeps * self._left_s + (1 - keeps) * left_s
        self._left_s = left_s
        self._size = progress.workers
        if progress.ended:
            self._of_last_epoch = progress.metrics

    def hear(self, time_s: float, entry: events.Entry) -> None:
        """Takes an entry and the time when it was written (seconds since 1970)."""
        match entry:
            case events.JobStarted() | events.MasterRestarted():
                self._begun = True
            case events.WorkerStarted() | events.WorkerRegistered():
                self._starting.add(entry.worker_id)
            case events.WorkerReady():
                self._starting.discard(entry.worker_id)
            case events.WorkerExited():
                self._starting.discard(entry.worker_id)
            case events.RoundOpened() if self._running:
                self._change = Change(time_s, f"the workers change: {entry.reason}")
            case events.RoundRunning():
                self._hear_round(time_s, entry)
            case events.Waiting():
                words = f"waiting: {entry.workers} of at least {entry.min_workers} workers"
                self._change = Change(time_s, words)
            case events.JobStopping():
                self._stopping = True
                self._change = Change(time_s, f"stopping: {entry.reason}")

    def _hear_round(self, time_s: float, entry: events.RoundRunning) -> None:
        before, self._size = self._size, entry.world_size
        workers = counted(entry.world_size, "worker")
        if self._running and not self._stopping:
            workers = f"{before} → {workers}" if before != entry.world_size else workers
            self._change = Change(time_s, f"{workers}: {entry.reason}")
        self._running = True

    def picture(self, width: int, now_s: float) -> RenderableType:
        """Returns the lines, each at most `width` cells wide; `now_s` is in seconds since 1970."""
        if self._progress is None:
            lines = [self._beginning(now_s)]
        else:
            lines = [self._bar(self._progress, width), self._numbers(self._progress, width)]
        if self._change:
            ago = format_duration(max(0.0, now_s - self._change.time_s))
            lines.append(_line(f"{ago} ago: {self._change.text}", "yellow"))
        return Constrain(Group(*lines), width)

    def _beginning(self, now_s: float) -> RenderableType:
        what = "starting workers" if self._begun else self._check
        if self._starting:
            what = f"starting {counted(len(self._starting), 'worker')}"
        if self._running:
            what = f"{counted(self._size, 'worker')}: before the first step"
        return _line(f"{what}  {format_duration(now_s - self._began_s)}", "bold")

    def _bar(self, progress: Progress, width: int) -> RenderableType:
        of_epochs = f"/{progress.epochs}" if progress.epochs else ""
        of_steps = f"/{progress.steps}" if progress.steps else ""
        left = f"  {format_duration(self._left_s)} left" if self._left_s is not None else ""
        title = Text(f"{progress.what or f'epoch {progress.epoch}{of_epochs}'}  ", "bold")
        rest = Text(f"  {progress.step}{of_steps}{left}")
        room = width - title.cell_len - rest.cell_len
        if not progress.steps or room < 1:
            line = Text.assemble(title, f"step {progress.step}{of_steps}{left}")
            return _cut(line)
        bar = ProgressBar(total=progress.steps, completed=progress.step, width=room)
        row = Table.grid()
        for _ in range(3):
            row.add_column(no_wrap=True)
        row.add_row(title, bar, rest)
        return row

    def _numbers(self, progress: Progress, width: int) -> RenderableType:
        """Returns the loss, the workers, the speed and the metrics, as far as there is room."""
        loss, others = _by_importance({**self._of_last_epoch, **progress.metrics})
        workers = counted(progress.workers, "worker")
        workers += f", {len(self._starting)} starting" if self._starting else ""
        speed = f"{self._examples_per_s:,.0f} examples/s"
        chosen = [workers]
        for part in filter(None, (loss, speed, *others)):
            if _width([*chosen, part]) <= width:
                chosen.append(part)
        first = [p for p in (loss, *others) if p in chosen]
        line = Text(BETWEEN.join([*first, *([speed] if speed in chosen else [])]), "cyan")
        if line:
            line.append(BETWEEN)
        return _cut(line.append(chosen[0], "bold" if self._starting else "default"))


def _width(parts: Iterable[str]) -> int:
    return cell_len(BETWEEN.join(parts))


def _by_importance(metrics: dict[str, float | None]) -> tuple[str, list[str]]:
    """Returns the loss and the other metrics, each as text."""
    words = {name: formatted_metrics({name: value}) for name, value in sorted(metrics.items())}
    loss = words.pop("loss", "")
    return loss, list(words.values())


def _line(text: str, style: str) -> Text:
    return _cut(Text(text, style))


def _cut(text: Text) -> Text:
    """Keeps a text on one line, whatever the width."""
    text.no_wrap, text.overflow = True, "ellipsis"
    return text
