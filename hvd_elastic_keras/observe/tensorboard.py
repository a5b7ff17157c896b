"""Writes the course of a job for TensorBoard: curves, and changes of membership in words.

The master writes it, so that a curve goes on whichever worker is rank 0. The format is
TensorBoard's own
(https://github.com/tensorflow/tensorboard/blob/master/tensorboard/compat/proto/event.proto).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import scalar, text

from hvd_elastic_keras.common import events, files
from hvd_elastic_keras.observe import job_history
from hvd_elastic_keras.observe.job_course import change_of, numbers

CHANGES = "job/changes"
FLUSH_EVERY_S = 10.0
"""TensorBoard itself looks twice a minute, and each flush waits for the disk."""


class TensorBoardLog:
    """Takes the entries of a job, and writes each of its trainings as a run of TensorBoard.

    The first training is the directory itself, the next ones are `training-2`, ...

    Args:
      directory: directory of the job's own event files; created if missing.
      warn: called to tell people that no more can be written; the job goes on.
    """

    def __init__(self, directory: Path, warn: Callable[[str], None]) -> None:
        self._directory = directory
        self._warn = warn
        self._runs: dict[int, _Run] = {}
        self._training = 1
        self._running: events.RoundRunning | None = None
        self._failed = False

    def hear(self, time_s: float, entry: events.Entry) -> None:
        """Takes an entry and the time when it was written (seconds since 1970)."""
        if self._failed:
            return
        try:
            self._write(time_s, entry)
        except OSError as error:
            self._failed = True
            self._warn(f"no more is written for TensorBoard to {self._directory}: {error}")

    def _write(self, time_s: float, entry: events.Entry) -> None:
        match entry:
            case events.StepsTaken():
                self._training = entry.training
                self._run.add(time_s, entry.step, _of_steps(entry))
            case events.EpochEnd():
                values = numbers(entry.metrics)
                self._run.add(time_s, entry.step, {f"epoch/{n}": v for n, v in values.items()})
            case events.RoundRunning():
                self._training = entry.training
                change = change_of(entry, self._running)
                values = {"job/workers": entry.world_size}
                values |= {"job/stall_s": entry.stall_s} if change else {}
                self._run.add(time_s, entry.step, values)
                self._run.note(time_s, "\n\n".join(job_history.lines(entry, change)))
                self._running = entry
            case events.JobFinished():
                for run in self._runs.values():
                    run.flush()

    @property
    def _run(self) -> _Run:
        number = self._training
        if number not in self._runs:
            self._runs[number] = _Run(files.training_dir(self._directory, number))
        return self._runs[number]


class _Run:
    """The event file of one training."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        # Two launchers of a job may begin in the same second.
        self._writer = EventsWriter(str(directory / "events"), f".{os.getpid()}")
        self._step = 0
        self._flushed_at = 0.0

    def add(self, time_s: float, step: int, values: dict[str, float]) -> None:
        """Writes a point of each curve."""
        if step < self._step:
            # Steps are repeated from a checkpoint: TensorBoard is to forget their old values.
            log = SessionLog(status=SessionLog.START)
            self._write(Event(wall_time=time_s, step=step, session_log=log))
        self._step = step
        for name, value in values.items():
            self._write(Event(wall_time=time_s, step=step, summary=scalar(name, value)))
        if not 0.0 <= time_s - self._flushed_at < FLUSH_EVERY_S:
            self._flushed_at = time_s
            self.flush()

    def note(self, time_s: float, words: str) -> None:
        """Writes a text for people about the present step."""
        if words:
            self._write(Event(wall_time=time_s, step=self._step, summary=text(CHANGES, words)))
            self.flush()

    def flush(self) -> None:
        """Puts what has been written on disk."""
        self._writer.flush()

    def _write(self, event: Any) -> None:
        self._writer.write_event(event)


def _of_steps(entry: events.StepsTaken) -> dict[str, float]:
    # Only trainings have epochs.
    group = "evaluation" if entry.epoch is None else "training"
    values = {f"{group}/{name}": value for name, value in entry.metrics.items()}
    values[f"speed/{entry.unit or 'step'}_s"] = entry.step_s
    sometimes = {
        "speed/examples_per_s": entry.examples_per_s,
        "speed/input_s": entry.input_s,
        "speed/compute_s": entry.compute_s,
        "speed/allreduce_s": entry.allreduce_s,
        "training/learning_rate": entry.learning_rate,
    }
    values |= {name: value for name, value in sometimes.items() if value is not None}
    return values
