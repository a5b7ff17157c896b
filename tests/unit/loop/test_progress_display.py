"""The progress display, with a fake clock."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

pytest.importorskip("keras")

from hvd_elastic_keras.common import messages
from hvd_elastic_keras.common.protocol import ALONE, Console, Progress
from hvd_elastic_keras.data.input.interfaces import LocalBatch
from hvd_elastic_keras.data.plan.partition import StepShare
from hvd_elastic_keras.loop.observer import (
    EndedEpoch,
    EvaluatedStep,
    PresentEpoch,
    TakenStep,
    TrainedEpoch,
)
from hvd_elastic_keras.loop.progress_display import ProgressDisplay
from hvd_elastic_keras.loop.schedule import Schedule
from hvd_elastic_keras.observe.console import Screen, format_duration
from hvd_elastic_keras.state.cursor import Cursor
from hvd_elastic_keras.step.step_result import StepResult


class Watched:
    """Collects text, and lets time pass."""

    def __init__(self, screen: Screen, verbose: int = 1) -> None:
        self.text = ""
        self.told: list[Progress] = []
        self.now = 100.0
        self.display = ProgressDisplay(self.show, screen, verbose, clock=lambda: self.now)

    def show(self, text: str, progress: Progress | None = None) -> None:
        self.text += text
        self.told += [progress] if progress else []

    def step(
        self,
        done: int,
        seconds: float,
        left: int,
        *,
        workers: int = 2,
        loss: float = 0.5,
        evaluations: int = 0,
    ) -> None:
        self.now += seconds
        self.display.after_step(
            TakenStep(
                Cursor(step=done - 1),
                msgspec.structs.replace(ALONE, size=workers),
                LocalBatch((), StepShare(0, 0, np.zeros(1, np.int32), 0, num_examples_of_step=100)),
                shares=(),
                result=StepResult({"loss": loss, "accuracy": 0.25}),
                steps_left=left,
                evaluations_left=evaluations,
            )
        )

    def end_epoch(self, evaluation_s: float, *, evaluates: bool = True, last: bool = False) -> None:
        self.display.after_training_phase(TrainedEpoch(Cursor(), whole=True))
        if evaluates:
            self.display.after_evaluation_step(EvaluatedStep(Cursor(), ALONE, 100, 1, {}))
        self.now += evaluation_s
        self.display.after_epoch(EndedEpoch(Cursor(), {}, is_last=last, shown={"loss": 0.5}))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (59.4, "0:59"), (60, "1:00"), (3599.7, "1:00:00"), (3725.2, "1:02:05")],
)
def test_durations_are_written_as_people_write_them(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_without_a_terminal_a_line_is_written_per_interval() -> None:
    screen = Watched(Screen.LINES)
    screen.display.on_epoch(PresentEpoch(0, 3, 10, 0))
    for done in range(1, 5):
        screen.step(done, 0.5, left=26 + (4 - done))
    assert screen.text.splitlines() == [
        "epoch 1/3  step 4/10  loss 0.5000  accuracy 0.2500  200 examples/s  2 workers  0:13 left"
    ]


def test_the_last_step_of_an_epoch_is_always_shown() -> None:
    screen = Watched(Screen.LINES)
    screen.display.on_epoch(PresentEpoch(1, 2, 2, 0))
    screen.step(1, 0.1, left=1, workers=1)
    screen.step(2, 0.1, left=0, workers=1)
    (line,) = screen.text.splitlines()
    assert line.startswith("epoch 2/2  step 2/2  ")
    assert "1000 examples/s  1 worker  0:00 left" in line


def test_an_epoch_ends_with_its_final_values() -> None:
    screen = Watched(Screen.LINES)
    screen.display.on_epoch(PresentEpoch(0, 1, 2, 0))
    screen.display.after_epoch(
        EndedEpoch(Cursor(), {}, is_last=False, shown={"val_loss": 0.125, "loss": 0.5})
    )
    assert screen.text.splitlines()[-1].startswith("epoch 1/1")
    assert "loss 0.5000  val_loss 0.1250" in screen.text


def test_on_a_terminal_the_epoch_has_a_title_and_a_bar() -> None:
    screen = Watched(Screen.TERMINAL)
    screen.display.on_epoch(PresentEpoch(0, 3, 4, 0))
    screen.step(4, 0.5, left=0)
    screen.display.after_epoch(EndedEpoch(Cursor(), {}, is_last=False, shown={"loss": 0.5}))
    assert screen.text.startswith("Epoch 1/3\n")
    assert "4/4" in screen.text
    assert screen.text.endswith("\n")


def test_a_warning_is_shown_on_a_line_of_its_own_also_to_those_who_want_to_see_nothing() -> None:
    screen = Watched(Screen.TERMINAL)
    screen.display.on_epoch(PresentEpoch(0, 3, 10, 0))
    screen.display.warning("a full disk")
    assert screen.text == "Epoch 1/3\n\nwarning: a full disk\n"
    quiet = Watched(Screen.LINES, verbose=0)
    quiet.display.note("nothing of interest")
    quiet.display.warning("a full disk")
    assert quiet.text == "warning: a full disk\n"


def test_going_on_in_the_middle_of_an_epoch_repeats_no_title() -> None:
    screen = Watched(Screen.TERMINAL)
    screen.display.on_epoch(PresentEpoch(0, 3, 4, 2))
    assert "Epoch" not in screen.text


def test_the_rate_does_not_count_the_time_before_a_change() -> None:
    screen = Watched(Screen.LINES)
    screen.display.on_epoch(PresentEpoch(0, 1, 10, 0))
    screen.now += 1000.0
    screen.display.on_epoch(PresentEpoch(0, 1, 10, 5))
    screen.step(6, 2.0, left=4)
    assert "50 examples/s" in screen.text


def test_the_time_left_follows_from_more_than_the_shorter_last_step_of_an_epoch() -> None:
    screen = Watched(Screen.LINES)
    screen.display.on_epoch(PresentEpoch(0, 2, 4, 0))
    for done in (1, 2, 3):
        screen.step(done, 3.0, left=8 - done)
    screen.step(4, 0.2, left=4)
    assert screen.told[-1].left_s == pytest.approx(4 * 9.2 / 4)
    screen.display.on_epoch(PresentEpoch(1, 2, 4, 0))
    screen.step(1, 6.0, left=3, workers=1)
    assert screen.told[-1].left_s == pytest.approx(18.0)  # a worker alone is as fast as that


def test_the_time_left_counts_evaluations_as_soon_as_one_has_been_timed() -> None:
    screen = Watched(Screen.LAUNCHER)
    for epoch in range(3):
        screen.display.on_epoch(PresentEpoch(epoch, 3, 1, 0))
        screen.step(1, 2.0, left=2 - epoch, evaluations=3 - epoch)
        screen.end_epoch(10.0, last=epoch == 2)
    assert [p.left_s for p in screen.told if not p.ended] == [4.0, 2.0 + 2 * 10.0, 10.0]
    assert screen.told[-1].left_s == 0


def test_an_epoch_that_ends_without_an_evaluation_tells_nothing_of_how_long_one_takes() -> None:
    screen = Watched(Screen.LAUNCHER)
    for epoch, evaluates in enumerate((True, False, True)):
        screen.display.on_epoch(PresentEpoch(epoch, 4, 1, 0))
        screen.step(1, 2.0, left=0, evaluations=1)
        screen.end_epoch(10.0 if evaluates else 1.0, evaluates=evaluates)
    assert [p.left_s for p in screen.told if not p.ended] == [0.0, 10.0, 10.0]


def test_an_evaluation_during_which_the_workers_change_is_not_timed() -> None:
    screen = Watched(Screen.LAUNCHER)
    screen.display.on_epoch(PresentEpoch(0, 2, 1, 0))
    screen.step(1, 2.0, left=1, evaluations=2)
    screen.display.after_training_phase(TrainedEpoch(Cursor(), whole=True))
    screen.now += 1000.0
    screen.display.on_epoch(PresentEpoch(0, 2, 1, 1))
    screen.display.after_evaluation_step(EvaluatedStep(Cursor(), ALONE, 100, 1, {}))
    screen.display.after_epoch(EndedEpoch(Cursor(), {}, is_last=False, shown={}))
    screen.display.on_epoch(PresentEpoch(1, 2, 1, 0))
    screen.step(1, 2.0, left=0, evaluations=1)
    assert [p.left_s for p in screen.told if not p.ended] == [2.0, 0.0]


@pytest.mark.parametrize(
    ("schedule", "cursor", "in_epoch", "left"),
    [
        (Schedule(epochs=3), Cursor(epoch=0, step=4), 10, 3),
        (Schedule(epochs=3), Cursor(epoch=2, step=9), 10, 1),
        (Schedule(epochs=3), Cursor(epoch=1), None, 2),
        (Schedule(epochs=10, validation_freq=[2, 7, 20]), Cursor(epoch=2), 10, 1),
        (Schedule(epochs=10, validation_freq=3), Cursor(epoch=2), 10, 3),
        (Schedule(epochs=10, steps=25), Cursor(epoch=1, global_step=10), 10, 2),
        (Schedule(epochs=None, steps=20), Cursor(epoch=1, global_step=10), 10, 1),
        (Schedule(epochs=None, steps=25), Cursor(), None, 0),
        (Schedule(epochs=3), Cursor(epoch=3), 10, 0),
    ],
)
def test_evaluations_left_are_those_of_the_epochs_left(
    schedule: Schedule, cursor: Cursor, in_epoch: int | None, left: int
) -> None:
    assert schedule.evaluations_left(cursor, in_epoch, in_epoch) == left


@pytest.mark.parametrize("verbose", [0, 1, 2])
def test_a_launcher_that_draws_hears_of_steps_more_often_than_it_gets_lines(verbose: int) -> None:
    screen = Watched(Screen.LAUNCHER, verbose)
    screen.display.on_epoch(PresentEpoch(1, 3, 100, 0))
    for done in range(1, 31):
        screen.step(done, 0.125, left=200 - done)
    assert [p.step for p in screen.told] == [*range(1, 16, 2), *range(16, 31, 2)]
    told = screen.told[8]
    assert (told.epoch, told.epochs, told.steps, told.workers) == (2, 3, 100, 2)
    assert told.examples_per_s == pytest.approx(800)
    assert told.left_s == pytest.approx(23)
    assert len(screen.text.splitlines()) == (1 if verbose == 1 else 0)
    assert "\r" not in screen.text


def test_a_launcher_that_draws_hears_of_the_end_of_an_epoch() -> None:
    screen = Watched(Screen.LAUNCHER, verbose=0)
    screen.display.on_epoch(PresentEpoch(0, 1, 1, 0))
    screen.step(1, 1.0, left=0)
    screen.display.after_epoch(EndedEpoch(Cursor(), {}, is_last=True, shown={"val_loss": 0.125}))
    assert [(p.ended, p.metrics.get("val_loss")) for p in screen.told] == [
        (False, None),
        (True, 0.125),
    ]
    assert screen.text == "", "the user wants no lines"


def test_a_loss_that_is_no_number_reaches_the_launcher() -> None:
    screen = Watched(Screen.LAUNCHER)
    screen.display.on_epoch(PresentEpoch(0, 1, 1, 0))
    screen.step(1, 1.0, left=0, loss=float("nan"))
    assert "loss nan" in screen.text
    message = Console(worker_id="w0", text="", progress=screen.told[0])
    assert messages.decode(messages.encode(message), Console) == message
