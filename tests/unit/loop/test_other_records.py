"""What rank 0 records of jobs that do not train step by step, with a fake clock."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

pytest.importorskip("keras")

from hvd_elastic_keras.common import events
from hvd_elastic_keras.common.protocol import ALONE
from hvd_elastic_keras.loop.observer import EvaluatedStep, Round
from hvd_elastic_keras.loop.observers.records import CommitRecords, InferenceRecords
from hvd_elastic_keras.state.cursor import Cursor
from hvd_elastic_keras.worker.reporter import TerminalReporter


class Recording(TerminalReporter):
    """Collects entries, and lets time pass."""

    def __init__(self) -> None:
        self.now = 100.0
        self.recorded: list[events.StepsTaken] = []

    def record(self, entry: events.WorkerEntry) -> None:
        assert isinstance(entry, events.StepsTaken)
        self.recorded.append(entry)


class Evaluation(Recording):
    """An evaluation whose steps take as long as a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.records = InferenceRecords(self, 0, clock=lambda: self.now)

    def step(self, number: int, took_s: float, loss: float = 0.5) -> None:
        self.now += took_s
        logs = {"loss": loss, "precision": float("nan"), "of_classes": np.zeros(3)}
        place = msgspec.structs.replace(ALONE, size=2)
        self.records.after_evaluation_step(EvaluatedStep(Cursor(step=number), place, 50, 10, logs))


class Loop(Recording):
    """A user's own loop, whose commits take as long as a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.records = CommitRecords(self, 0, clock=lambda: self.now)
        self.records.begin_round()

    def commits(self, first: int, *took_s: float) -> None:
        for number, seconds in enumerate(took_s, first):
            self.now += seconds
            self.records.after_commit(number)


def test_an_evaluation_records_its_speed_and_its_metrics_so_far() -> None:
    job = Evaluation()
    for number in range(3):
        job.step(number, 0.25, loss=number)
    assert job.recorded == [
        events.StepsTaken(
            training=0, epoch=None, step=2, metrics={"loss": 1.0}, examples_per_s=200.0, step_s=0.25
        )
    ]


def test_the_end_of_an_evaluation_is_recorded_once_however_short_it_is() -> None:
    job = Evaluation()
    job.step(0, 0.125, loss=0.25)
    job.records.at_end_of_phase(Cursor(step=1))
    job.records.at_end_of_phase(Cursor(step=1))
    (entry,) = job.recorded
    assert (entry.step, entry.metrics, entry.examples_per_s) == (1, {"loss": 0.25}, 400.0)


def test_what_an_evaluation_waits_for_another_round_makes_no_step_slow() -> None:
    job = Evaluation()
    job.step(0, 0.25)
    job.now += 60.0
    job.records.on_running(Round(ALONE, Cursor(step=1), starts_state=False))
    job.step(1, 0.25)
    job.step(2, 0.25)
    (entry,) = job.recorded
    assert (entry.step, entry.step_s) == (3, 0.25)


def test_a_loop_of_ones_own_records_the_time_between_its_commits() -> None:
    loop = Loop()
    loop.commits(1, 30.0, 0.25, 0.25, 0.75, 0.25)
    first, second = loop.recorded
    assert first == events.StepsTaken(
        training=0,
        epoch=None,
        step=3,
        unit="commit",
        metrics={},
        examples_per_s=None,
        step_s=0.25,
    )
    assert (second.step, second.step_s) == (4, 0.75)
    loop.records.end()
    assert [entry.step for entry in loop.recorded] == [3, 4, 5]


def test_a_loop_without_two_commits_has_no_speed() -> None:
    loop = Loop()
    loop.records.end()
    loop.commits(1, 0.25)
    loop.records.end()
    assert loop.recorded == []


def test_in_another_round_a_loop_is_measured_from_its_first_commit() -> None:
    loop = Loop()
    loop.commits(1, 0.25, 0.25)
    loop.records.begin_round()
    loop.commits(3, 60.0, 0.5)
    (entry,) = loop.recorded
    assert (entry.step, entry.step_s) == (4, 0.5)


def test_where_fit_trains_in_the_function_its_own_steps_are_enough() -> None:
    loop = Loop()
    loop.commits(1, 0.25, 0.125)
    loop.records.leave_to_fit()
    loop.commits(3, 60.0, 60.0)
    loop.records.end()
    assert loop.recorded == []
