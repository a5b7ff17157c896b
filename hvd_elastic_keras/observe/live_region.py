"""The few lines at the bottom of a terminal that say how a job goes.

epoch 16/400  ━━━━━━━━━━━━━━━━━━━╸━━━━━━━━━━━━━━━━━  7/12  1:31 left
accuracy 0.9979  loss 0.0272 · 6,064 examples/s · 3 workers, 1 starting
0:12 ago: 3 → 2 workers: w1 was killed by SIGKILL
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hvd_elastic_keras.common import events
from hvd_elastic_keras.common.job_spec import EVALUATE, PREDICT, TRAIN
from hvd_elastic_keras.common.protocol import Progress
from hvd_elastic_keras.observe.console import counted
from hvd_elastic_keras.observe.progress_text import format_duration, formatted_metrics

STEADY = 0.9
"""The share of its old value that the speed shown keeps, so that people can read it."""
BETWEEN = "  "
CHECKS = {
    TRAIN: "checking what is to be trained",
    EVALUATE: "checking what is to be evaluated",
    PREDICT: "checking what is to be predicted",
}
"""By the kind of job: text for what the launcher does before it starts any worker."""


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
