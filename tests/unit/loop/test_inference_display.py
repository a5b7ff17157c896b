"""The lines of a job that evaluates or predicts, with a fake clock."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

pytest.importorskip("keras")

from hvd_elastic_keras.common.protocol import ALONE
from hvd_elastic_keras.loop.inference_display import InferenceDisplay
from hvd_elastic_keras.loop.observer import EvaluatedStep, Round
from hvd_elastic_keras.state.cursor import Cursor


class Screen:
    """Collects lines and lets time pass."""

    def __init__(self) -> None:
        self.text = ""
        self.now = 100.0
        self.display = InferenceDisplay(self.show, "predicting", clock=lambda: self.now)
        self.display.on_running(Round(ALONE, Cursor(), takes_up=True))

    def show(self, text: str) -> None:
        self.text += text

    def step(self, number: int, seconds: float, of: int | None = 10, **logs: Any) -> None:
        self.now += seconds
        place = msgspec.structs.replace(ALONE, size=2)
        self.display.after_evaluation_step(EvaluatedStep(Cursor(step=number), place, 50, of, logs))


def test_a_line_is_shown_from_time_to_time() -> None:
    screen = Screen()
    for number in range(4):
        screen.step(number, 0.5)
    assert screen.text == "predicting  step 4/10  100 examples/s  2 workers  0:03 left\n"


def test_the_last_step_is_shown_whenever_it_comes() -> None:
    screen = Screen()
    screen.step(9, 0.5, loss=0.25)
    assert screen.text == (
        "predicting  step 10/10  loss 0.2500  100 examples/s  2 workers  0:00 left\n"
    )


def test_a_length_that_nobody_knows_is_not_shown() -> None:
    screen = Screen()
    screen.step(4, 2.0, of=None)
    assert screen.text == "predicting  step 5  25 examples/s  2 workers\n"
