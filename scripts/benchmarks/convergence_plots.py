"""The figures of the convergence benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import matplotlib as mpl
from convergence_runs import Run
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

mpl.use("Agg")
mpl.rcParams["lines.solid_capstyle"] = "butt"  # wide lines have no caps, in the legend too
REFERENCE_COLOUR = "0.75"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#000000")
"""Colours after Okabe and Ito, which colour-blind people can tell apart."""
WIDEST, NARROWEST = 7.0, 1.0
NEAR = 7
"""Steps shown before and after the revocation."""
SMALLEST = 1e-8
"""Below this, the axis of differences is linear, so that 0 is on it. It is half a unit in the last
place of a loss of 0.1 to 0.2.
"""


def _styles(runs: Sequence[Run]) -> Iterator[tuple[Run, str, float]]:
    """Yields each run with its colour and line width: narrower lines lie on wider ones."""
    shrink = (WIDEST - NARROWEST) / max(1, len(runs) - 1)
    for index, run in enumerate(runs):
        yield run, COLOURS[index % len(COLOURS)], WIDEST - index * shrink


def _label(run: Run) -> str:
    return f"{run.name} ({run.shares})"


def _figure(title: str, heights: Sequence[float]) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(8.5, sum(heights)), dpi=100, layout="constrained")
    figure.suptitle(title)
    axes = list(figure.subplots(len(heights), height_ratios=heights))
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def curves(path: Path, reference: Run, runs: Sequence[Run], tolerance: float) -> None:
    """Draws loss and accuracy of each step, and the differences from the reference."""
    figure, (loss, near, accuracy, distance) = _figure(
        f"{runs[0].workers} workers, some revoked after the first epoch ({runs[0].mode} mode)",
        (3.0, 2.8, 2.2, 2.6),
    )
    panels = (loss, "loss", 0.4), (accuracy, "accuracy", 0.4), (near, "loss", 1.5)
    for axis, name, scale in panels:
        _nested(axis, name, reference, runs, scale)
        _mark_steps(axis, runs)
    loss.set_yscale("log")
    _look_closely(near, reference, runs)
    _distances(distance, reference, runs, tolerance)
    _mark_steps(distance, runs)
    figure.legend(
        *near.get_legend_handles_labels(),
        title="workers (micro-batches of each that is left)",
        loc="outside lower center",
        ncols=3,
        fontsize="small",
    )
    _save(figure, path)


def _nested(axis: Axes, name: str, reference: Run, runs: Sequence[Run], scale: float) -> None:
    """Draws lines that coincide: each lies on wider ones, which stay visible at its sides."""
    numbers = [s.step + 1 for s in reference.steps]
    values = [getattr(s, name) for s in reference.steps]
    width = scale * (WIDEST + 4)
    axis.plot(numbers, values, color=REFERENCE_COLOUR, lw=width, label="1 from the start")
    for run, colour, width in _styles(runs):
        values = [getattr(s, name) for s in run.steps]
        axis.plot(numbers, values, color=colour, lw=scale * width, label=_label(run))
    axis.set_ylabel(f"{name} of a step")


def _look_closely(axis: Axes, reference: Run, runs: Sequence[Run]) -> None:
    """Shows only the steps around the revocation."""
    middle = max([run.change.step for run in runs if run.change], default=len(reference.steps) // 2)
    shown = reference.steps[max(0, middle - NEAR) : middle + NEAR]
    axis.set_xlim(shown[0].step + 1, shown[-1].step + 1)
    losses = [s.loss for s in shown]
    axis.set_ylim(0.8 * min(losses), 1.1 * max(losses))
    axis.set_ylabel("loss of a step,\nround the revocation")


def _distances(axis: Axes, reference: Run, runs: Sequence[Run], tolerance: float) -> None:
    for run, colour, width in _styles(runs):
        pairs = list(zip(run.steps, reference.steps, strict=True))
        values = [abs(a.loss - b.loss) for a, b in pairs]
        axis.plot([b.step + 1 for _, b in pairs], values, ".", color=colour, ms=2.5 + width)
    axis.axhline(tolerance, color="black", ls="--", lw=1)
    last = len(reference.steps)
    axis.annotate("allowed in the usual mode", (last, tolerance), ha="right", va="bottom")
    axis.set_yscale("symlog", linthresh=SMALLEST)
    axis.set_ylim(-SMALLEST / 3, 10 * tolerance)
    axis.set_ylabel("|loss - loss with 1 worker|")
    axis.set_xlabel("optimizer step")


def _mark_steps(axis: Axes, runs: Sequence[Run]) -> None:
    """Marks where workers were revoked: between two steps."""
    steps = sorted({run.change.step for run in runs if run.change})
    for index, step in enumerate(steps):
        label = None if index else "revocation"
        axis.axvline(step + 0.5, color="red", ls="--", lw=1.2, zorder=9, label=label)


def wall_time(path: Path, reference: Run, runs: Sequence[Run]) -> None:
    """Draws loss and validation accuracy against the clock; a point is the end of an epoch."""
    figure, (loss, accuracy) = _figure(
        f"{runs[0].workers} workers, some revoked after the first epoch ({runs[0].mode} mode)",
        (3.2, 3.2),
    )
    styles = [(reference, "0.6", 3.0), *((run, colour, 1.5) for run, colour, _ in _styles(runs))]
    for run, colour, width in styles:
        seconds = [e.time_s for e in run.epochs]
        for axis, name in ((loss, "loss"), (accuracy, "val_accuracy")):
            values = [getattr(e, name) for e in run.epochs]
            text = "1 from the start" if run is reference else run.name
            axis.plot(seconds, values, ".-", color=colour, lw=width, label=text)
            if run.change:
                axis.axvline(run.change.time_s, color=colour, ls="--", lw=1)
    loss.plot([], [], color="black", ls="--", lw=1, label="revocation, of each colour")
    loss.set_yscale("log")
    for axis in (loss, accuracy):
        axis.set_xlim(left=0)
    loss.set_ylabel("loss, mean of an epoch")
    accuracy.set_ylabel("validation accuracy")
    accuracy.set_xlabel("seconds since training began (a point: the end of an epoch)")
    loss.legend(title="workers", ncols=2, fontsize="small")
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    """Saves with a palette, which makes the file less than half as large."""
    figure.savefig(path)
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(128)
    small.save(path, optimize=True)
