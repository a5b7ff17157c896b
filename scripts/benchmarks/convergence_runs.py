"""The results of one job of the convergence benchmark, and the differences between two jobs."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Event = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Step:
    """One optimizer step; times are in seconds since the training began.

    Attributes:
      took_s: seconds since the step before, or since the beginning of the epoch.
    """

    step: int
    epoch: int
    time_s: float
    took_s: float
    workers: int
    loss: float
    accuracy: float


@dataclasses.dataclass(frozen=True)
class Epoch:
    """One epoch, validation included; `loss` and `accuracy` are means over its steps."""

    epoch: int
    time_s: float
    took_s: float
    loss: float
    accuracy: float
    val_loss: float
    val_accuracy: float


@dataclasses.dataclass(frozen=True)
class Change:
    """The revocation.

    Attributes:
      time_s: time of the decision, in seconds since the training began.
      step: number of finished steps when the smaller round began.
      took_s: seconds from the decision until the smaller round ran. Training goes on for a part of
        this time.
      pause_s: seconds from the end of the last step of all workers to the end of the first step of
        the workers left.
      micro_batches: micro-batches of a global batch, by rank.
    """

    time_s: float
    step: int
    took_s: float
    pause_s: float
    steps_lost: int
    micro_batches: Sequence[int]


@dataclasses.dataclass(frozen=True)
class Run:
    """One job, which starts with `workers` and ends with `left` of them."""

    mode: str
    workers: int
    left: int
    micro_batches: Sequence[int]
    steps: Sequence[Step]
    epochs: Sequence[Epoch]
    change: Change | None

    @property
    def name(self) -> str:
        """The name of the run in tables and figures."""
        if self.change is None:
            return f"{self.workers}, no revocation"
        return f"{self.workers} → {self.left}"

    @property
    def shares(self) -> str:
        """The micro-batches of each worker left."""
        return "+".join(map(str, self.change.micro_batches if self.change else self.micro_batches))

    @property
    def seconds(self) -> float:
        """Seconds until the last epoch was finished."""
        return self.epochs[-1].time_s

    def step_s(self, workers: int) -> float | None:
        """Returns the median time of steps with this many workers.

        The first such step is left out: it includes the change.
        """
        times = [s.took_s for s in self.steps if s.workers == workers][1:]
        return statistics.median(times) if times else None


@dataclasses.dataclass(frozen=True)
class Difference:
    """The largest absolute differences of two runs over all steps and all epochs (`val_`)."""

    loss: float
    accuracy: float
    val_loss: float
    val_accuracy: float


def difference(run: Run, reference: Run) -> Difference:
    """Returns the differences of a run from its reference, which has as many steps and epochs."""

    def largest(name: str, ours: Iterable[Any], theirs: Iterable[Any]) -> float:
        pairs = zip(ours, theirs, strict=True)
        # Not `max`, which may ignore values that are not numbers.
        return float(np.max([abs(getattr(a, name) - getattr(b, name)) for a, b in pairs]))

    return Difference(
        largest("loss", run.steps, reference.steps),
        largest("accuracy", run.steps, reference.steps),
        largest("val_loss", run.epochs, reference.epochs),
        largest("val_accuracy", run.epochs, reference.epochs),
    )


def mistakes(run: Run, found: Difference, allowed: Difference) -> list[str]:
    """Returns what is wrong with a run, one text for each problem."""
    wrong = [
        f"{field.name} differs by {value:.1e} from the reference, allowed is {limit:.1e}"
        for field in dataclasses.fields(Difference)
        if not (value := getattr(found, field.name)) <= (limit := getattr(allowed, field.name))
    ]
    if run.steps[-1].workers != run.left:
        wrong.append(f"the last step was taken by {run.steps[-1].workers} workers")
    if run.change and run.change.steps_lost:
        wrong.append(f"{run.change.steps_lost} steps were lost")
    return [f"{run.mode}, {run.name}: {text}" for text in wrong]


def read(mode: str, workers: int, left: int, job_dir: Path, step_log: Path) -> Run:
    """Reads a run from the events of a job and its step log (see `convergence_model.StepLog`)."""
    events = [json.loads(line) for line in (job_dir / "events.jsonl").read_text().splitlines()]
    lines = [line.split() for line in step_log.read_text().splitlines()]
    began = float(lines[0][2])
    steps = list(_steps(lines, began))
    rounds = [e for e in events if e["event"] == "round_running"]
    return Run(
        mode,
        workers,
        left,
        rounds[0]["micro_batches"],
        steps,
        list(_epochs(events, lines, steps, began)),
        _change(events, rounds, steps, began),
    )


def _steps(lines: Sequence[Sequence[str]], began: float) -> Iterable[Step]:
    numbers = itertools.count()
    for before, line in itertools.pairwise(lines):
        if int(line[1]) >= 0:  # not the beginning of an epoch
            moment = float(line[2])
            yield Step(
                step=next(numbers),
                epoch=int(line[0]),
                time_s=round(moment - began, 4),
                took_s=round(moment - float(before[2]), 4),
                workers=int(line[3]),
                loss=float(line[4]),
                accuracy=float(line[5]),
            )


def _epochs(
    events: Sequence[Event], lines: Sequence[Sequence[str]], steps: Sequence[Step], began: float
) -> Iterable[Epoch]:
    beginnings = {int(line[0]): float(line[2]) for line in lines if line[1] == "-1"}
    for event in events:
        if event["event"] == "epoch_end":
            epoch = event["epoch"]
            of_epoch = [s for s in steps if s.epoch == epoch]
            yield Epoch(
                epoch,
                time_s=round(event["time"] - began, 3),
                took_s=round(event["time"] - beginnings[epoch], 3),
                loss=statistics.fmean(s.loss for s in of_epoch),
                accuracy=statistics.fmean(s.accuracy for s in of_epoch),
                val_loss=event["metrics"]["val_loss"],
                val_accuracy=event["metrics"]["val_accuracy"],
            )


def _change(
    events: Sequence[Event], rounds: Sequence[Event], steps: Sequence[Step], began: float
) -> Change | None:
    decided = [e["time"] for e in events if e["event"] == "slots_revoked"]
    if not decided:
        return None
    second = rounds[1]
    first = second["step"]
    return Change(
        time_s=round(decided[0] - began, 3),
        step=first,
        took_s=round(second["time"] - decided[0], 3),
        pause_s=round(steps[first].time_s - steps[first - 1].time_s, 4),
        steps_lost=sum(e["steps_lost"] for e in rounds),
        micro_batches=second["micro_batches"],
    )


def write_csv(path: Path, runs: Sequence[Run], rows: str) -> None:
    """Writes one line for each of the `rows` ("steps" or "epochs") of all runs."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        first = getattr(runs[0], rows)[0]
        names = [field.name for field in dataclasses.fields(first)]
        writer.writerow(["mode", "started_with", "left", *names])
        for run in runs:
            for row in getattr(run, rows):
                writer.writerow([run.mode, run.workers, run.left, *dataclasses.astuple(row)])
