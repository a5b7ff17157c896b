"""The display of a job that evaluates or predicts, with a fake clock."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

pytest.importorskip("keras")

from hvd_elastic_keras.common import messages
from hvd_elastic_keras.common.protocol import ALONE, Console, Progress
from hvd_elastic_keras.loop.observer import EvaluatedStep, Round
from hvd_elastic_keras.loop.progress_display import InferenceDisplay
from hvd_elastic_keras.observe.console import Screen
from hvd_elastic_keras.state.cursor import Cursor


class Watched:
    """Collects the output, and lets time pass."""

    def __init__(self, screen: Screen = Screen.LINES) -> None:
        self.text = ""
        self.told: list[Progress] = []
        self.now = 100.0
        self.display = InferenceDisplay(self.show, "predicting", screen, clock=lambda: self.now)
        self.display.on_running(Round(ALONE, Cursor(), starts_state=True))

    def show(self, text: str, progress: Progress | None = None) -> None:
        self.text += text
        self.told += [progress] if progress else []

    def step(self, number: int, seconds: float, of: int | None = 10, **logs: Any) -> None:
        self.now += seconds
        place = msgspec.structs.replace(ALONE, size=2)
        self.display.after_evaluation_step(EvaluatedStep(Cursor(step=number), place, 50, of, logs))


def test_a_line_is_shown_from_time_to_time() -> None:
    screen = Watched()
    for number in range(4):
        screen.step(number, 0.5)
    assert screen.text == "predicting  step 4/10  100 examples/s  2 workers  0:03 left\n"


def test_the_last_step_is_shown_whenever_it_comes() -> None:
    screen = Watched()
    screen.step(9, 0.5, loss=0.25)
    assert screen.text == (
        "predicting  step 10/10  loss 0.2500  100 examples/s  2 workers  0:00 left\n"
    )


def test_a_length_that_nobody_knows_is_not_shown() -> None:
    screen = Watched()
    screen.step(4, 2.0, of=None)
    assert screen.text == "predicting  step 5  25 examples/s  2 workers\n"


def test_a_launcher_that_draws_hears_of_steps_more_often_than_it_gets_lines() -> None:
    screen = Watched(Screen.LAUNCHER)
    for number in range(20):
        screen.step(number, 0.125, of=100, loss=0.5)
    assert [progress.step for progress in screen.told] == [*range(1, 16, 2), 16, 18, 20]
    told = screen.told[-2]
    assert (told.what, told.steps, told.workers) == ("predicting", 100, 2)
    assert told.metrics == {"loss": 0.5}
    assert told.examples_per_s == pytest.approx(400)
    assert told.left_s == pytest.approx(82 * 0.125)
    assert len(screen.text.splitlines()) == 1


def test_a_metric_that_is_no_number_reaches_the_launcher() -> None:
    screen = Watched(Screen.LAUNCHER)
    screen.step(9, 1.0, loss=float("nan"), of_classes=[1.0, 0.0])
    assert "loss nan" in screen.text
    message = Console(worker_id="w0", text="", progress=screen.told[0])
    assert messages.decode(messages.encode(message), Console) == message
