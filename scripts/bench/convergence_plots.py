"""The pictures of the convergence benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import matplotlib as mpl
from convergence_runs import Run
from matplotlib.axes import Axes
from matplotlib.figure import Figure

mpl.use("Agg")
REFERENCE_COLOUR = "0.75"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#000000")
"""After Okabe and Ito: can be told apart by people who see few colours."""
WIDEST, NARROWEST = 7.0, 1.0
SMALLEST = 1e-8
"""Below this the axis of differences is linear, so that 0 is on it: half a unit in the last place
of a loss of 0.1 to 0.2."""


def _styles(runs: Sequence[Run]) -> Iterator[tuple[Run, str, float]]:
    """Each run with its colour and line width: narrower ones lie on wider ones."""
    shrink = (WIDEST - NARROWEST) / max(1, len(runs) - 1)
    for index, run in enumerate(runs):
        yield run, COLOURS[index % len(COLOURS)], WIDEST - index * shrink


def _label(run: Run) -> str:
    return f"{run.name} ({run.shares})"


def _figure(title: str, rows: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(8.5, 3.0 * rows), dpi=100, layout="constrained")
    figure.suptitle(title)
    axes = [figure.add_subplot(rows, 1, 1)]
    axes += [figure.add_subplot(rows, 1, row, sharex=axes[0]) for row in range(2, rows + 1)]
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def curves(path: Path, reference: Run, runs: Sequence[Run], tolerance: float) -> None:
    """Loss and accuracy of each step, and how far they are from the reference."""
    workers = runs[0].workers
    figure, (loss, accuracy, distance) = _figure(
        f"{workers} workers, some revoked after the first epoch ({runs[0].mode} mode)", 3
    )
    numbers = [s.step + 1 for s in reference.steps]
    for axis, name in ((loss, "loss"), (accuracy, "accuracy")):
        values = [getattr(s, name) for s in reference.steps]
        axis.plot(numbers, values, color=REFERENCE_COLOUR, lw=11, label="1 from the start")
        for run, colour, width in _styles(runs):
            values = [getattr(s, name) for s in run.steps]
            axis.plot(numbers, values, color=colour, lw=width, label=_label(run))
        axis.set_ylabel(f"{name} of a step")
    for index, (run, colour, _) in enumerate(_styles(runs)):
        pairs = zip(run.steps, reference.steps, strict=True)
        values = [abs(a.loss - b.loss) for a, b in pairs]
        distance.plot(numbers, values, ".", color=colour, ms=4, label=_label(run), zorder=3 + index)
    distance.axhline(tolerance, color="black", ls="--", lw=1)
    distance.annotate("allowed", (numbers[-1], tolerance), ha="right", va="bottom")
    distance.set_yscale("symlog", linthresh=SMALLEST)
    distance.set_ylim(-SMALLEST / 4, 10 * tolerance)
    distance.set_ylabel("difference of the loss\nfrom 1 worker (absolute)")
    distance.set_xlabel("optimizer step")
    _mark_steps((loss, accuracy, distance), runs)
    loss.legend(title="workers (micro-batches of each that is left)", ncols=2, fontsize="small")
    figure.savefig(path)


def _mark_steps(axes: Sequence[Axes], runs: Sequence[Run]) -> None:
    """The first step of a smaller round, of all runs."""
    steps = [run.change.step for run in runs if run.change]
    if steps:
        for axis in axes:
            axis.axvspan(min(steps) + 0.5, max(steps) + 0.5, color="red", alpha=0.3, lw=0)
        axes[1].annotate(
            "revocation", (max(steps) + 1, axes[1].get_ylim()[0]), color="red", va="bottom"
        )


def wall_time(path: Path, reference: Run, runs: Sequence[Run]) -> None:
    """Loss and validation accuracy against the clock, and the time of each epoch."""
    workers = runs[0].workers
    figure, (loss, accuracy) = _figure(
        f"{workers} workers, some revoked at the marked moment ({runs[0].mode} mode)", 2
    )
    styles = [(reference, "0.6", 3.0), *((run, colour, 1.5) for run, colour, _ in _styles(runs))]
    for run, colour, width in styles:
        seconds = [e.time_s for e in run.epochs]
        for axis, name in ((loss, "loss"), (accuracy, "val_accuracy")):
            values = [getattr(e, name) for e in run.epochs]
            text = "1 from the start" if run is reference else run.name
            axis.plot(seconds, values, ".-", color=colour, lw=width, label=text)
            if run.change:
                axis.axvline(run.change.time_s, color=colour, ls=":", lw=1)
    loss.set_yscale("log")
    loss.set_ylabel("loss, mean of an epoch")
    accuracy.set_ylabel("validation accuracy")
    accuracy.set_xlabel("seconds since training began (2 points: 1 epoch)")
    loss.legend(title="workers", ncols=2, fontsize="small")
    figure.savefig(path)
