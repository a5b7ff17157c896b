"""The progress of a training, for people: the formats of its numbers, and where it is shown."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping

from hvd_elastic_keras.common.protocol import Progress
from hvd_elastic_keras.observe.console import counted

MINUTE_S = 60


def format_duration(seconds: float) -> str:
    """Formats seconds as hours, minutes and seconds.

    >>> format_duration(3725.2), format_duration(59)
    ('1:02:05', '0:59')
    """
    minutes, rest = divmod(round(seconds), MINUTE_S)
    hours, minutes = divmod(minutes, MINUTE_S)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def step_line(what: str, progress: Progress) -> str:
    """Returns the progress as a line that begins with `what`.

    >>> place = {"epoch": 1, "epochs": 2, "step": 3, "steps": 12}
    >>> progress = Progress(**place, metrics={}, examples_per_s=99.6, workers=1, left_s=61)
    >>> step_line("epoch 1/2", progress).rstrip()
    'epoch 1/2  step 3/12  100 examples/s  1 worker  1:01 left'
    """
    step, steps, left_s = progress.step, progress.steps, progress.left_s
    parts = [
        what,
        f"step {step}" if steps is None else f"step {step}/{steps}",
        formatted_metrics(progress.metrics),
        f"{progress.examples_per_s:.0f} examples/s",
        counted(progress.workers, "worker"),
        "" if left_s is None else f"{format_duration(left_s)} left",
    ]
    return "  ".join(filter(None, parts)) + "\n"


def formatted_metrics(metrics: Mapping[str, float | None]) -> str:
    """Returns names and values in alphabetical order; None means "not a number".

    >>> formatted_metrics({"loss": None, "accuracy": 0.25})
    'accuracy 0.2500  loss nan'
    """
    numbers = {n: math.nan if v is None else v for n, v in metrics.items()}
    return "  ".join(f"{name} {value:.4f}" for name, value in sorted(numbers.items()))


class Screen(enum.Enum):
    """The kinds of places, which differ in what they can show."""

    LINES = "lines"
    """A file or a pipe of this process, which trains alone."""
    TERMINAL = "terminal"
    """The terminal of this process, which trains alone."""
    LAUNCHER = "launcher"
    """The output of the launcher, which draws the progress itself or writes lines about it."""
