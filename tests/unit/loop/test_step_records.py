"""What rank 0 records of its steps, with a fake clock."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

pytest.importorskip("keras")

from hvd_elastic_keras.common import events
from hvd_elastic_keras.common.protocol import ALONE
from hvd_elastic_keras.data.input.interfaces import LocalBatch
from hvd_elastic_keras.data.plan.partition import StepShare
from hvd_elastic_keras.loop.observer import PresentEpoch, Round, TakenStep, TrainedEpoch
from hvd_elastic_keras.loop.observers.records import StepRecords
from hvd_elastic_keras.state.cursor import Cursor
from hvd_elastic_keras.step.step_result import StepResult
from hvd_elastic_keras.step.world import StepSeconds
from hvd_elastic_keras.worker.reporter import TerminalReporter


class Training(TerminalReporter):
    """A training whose steps take as long as a test says."""

    def __init__(self) -> None:
        self.now, self.left = 100.0, 10
        self.recorded: list[events.StepsTaken] = []
        self.waited_s = 0.0
        self.learning_rate: float | None = None
        self.seconds: StepSeconds | None = None
        self.records = StepRecords(
            self,
            0,
            waited_s=lambda: self.waited_s,
            seconds=lambda: self.seconds,
            learning_rate=lambda: self.learning_rate,
            clock=lambda: self.now,
        )

    def record(self, entry: events.WorkerEntry) -> None:
        assert isinstance(entry, events.StepsTaken)
        self.recorded.append(entry)

    def step(self, number: int, took_s: float, seconds: tuple[float, ...] = ()) -> None:
        self.now += took_s
        self.left -= 1
        logs = {"loss": 0.5, "precision": float("nan"), "of_classes": np.zeros(3)}
        share = StepShare(0, 0, np.zeros(1, np.int32), 0, num_examples_of_step=100)
        self.records.after_step(
            TakenStep(
                Cursor(epoch=1, global_step=number),
                msgspec.structs.replace(ALONE, size=2),
                LocalBatch((), share),
                shares=(3, 1),
                result=StepResult(logs, seconds=seconds),
                steps_left=self.left,
            )
        )


def test_an_interval_is_recorded_when_it_is_over() -> None:
    training = Training()
    training.records.on_epoch(PresentEpoch(1, 5, None, 0))
    for number, took_s in enumerate((0.2, 0.2, 0.4, 0.2, 0.5)):
        training.step(number, took_s)
    first, second = training.recorded
    assert first == events.StepsTaken(
        training=0,
        epoch=1,
        step=3,
        metrics={"loss": 0.5},
        examples_per_s=375.0,
        step_s=0.266667,
        input_s=0.0,
        epochs=5,
        steps_left=7,
    )
    assert (second.step, second.step_s) == (5, 0.35)


def test_of_the_steps_of_an_interval_the_timed_ones_count() -> None:
    training = Training()
    for number, seconds in enumerate((None, StepSeconds(0.1, 0.05), StepSeconds(0.2, 0.25))):
        training.seconds = seconds
        training.step(number, 0.25)
    training.seconds = None
    training.step(3, 0.5)
    first, second = training.recorded
    assert (first.compute_s, first.allreduce_s) == (0.1, 0.05)
    assert (second.compute_s, second.allreduce_s) == (0.2, 0.25), "one of its two steps"


def test_an_evaluation_between_two_epochs_makes_no_step_slow() -> None:
    training = Training()
    for number in range(3):  # epochs shorter than an interval
        training.records.on_epoch(PresentEpoch(number, None, None, 0))
        training.step(number, 0.2)
        training.records.after_training_phase(TrainedEpoch(Cursor(epoch=number), whole=True))
        training.now += 60.0
    (entry,) = training.recorded
    assert (entry.step, entry.step_s) == (3, 0.2)


def test_an_interval_ends_with_its_round() -> None:
    training = Training()
    training.step(0, 0.4)
    training.now += 60.0
    training.records.on_running(Round(ALONE, Cursor(), starts_state=False))
    training.step(1, 0.4)
    assert training.recorded == []


def test_what_each_worker_computes_is_told_where_it_is_measured() -> None:
    training = Training()
    training.step(0, 0.5, seconds=(0.004, 0.008))
    assert training.recorded[0].part_s == [0.3, 0.2]


def test_how_long_rank_0_waited_for_examples_and_the_learning_rate_are_told() -> None:
    training = Training()
    training.waited_s, training.learning_rate = 0.1, 0.25
    training.step(0, 0.2)
    training.waited_s, training.learning_rate = 0.3, 0.125
    training.step(1, 0.4)
    (entry,) = training.recorded
    assert (entry.input_s, entry.learning_rate) == (0.2, 0.125)
    training.waited_s = 0.05
    training.step(2, 0.5)
    assert training.recorded[1].input_s == 0.05
