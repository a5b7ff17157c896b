"""The position in the training."""

from __future__ import annotations

from hvd_elastic_keras.state.cursor import Cursor, Phase


def test_a_training_step_counts_as_optimizer_step_and_as_progress() -> None:
    assert Cursor(step=3, global_step=13, progress=20).after_step() == Cursor(
        step=4, global_step=14, progress=21
    )


def test_an_evaluation_step_counts_as_progress_only() -> None:
    before = Cursor(epoch=1, phase=Phase.EVALUATE, step=0, global_step=14, progress=20)
    assert before.after_step() == Cursor(1, Phase.EVALUATE, 1, 14, 21)


def test_a_phase_starts_at_its_first_step_and_keeps_the_totals() -> None:
    before = Cursor(epoch=1, phase=Phase.TRAIN, step=7, global_step=14, progress=20)
    assert before.start_of(Phase.EVALUATE, 1) == Cursor(1, Phase.EVALUATE, 0, 14, 20)
    assert before.start_of(Phase.TRAIN, 2) == Cursor(2, Phase.TRAIN, 0, 14, 20)


def test_a_phase_is_its_text() -> None:
    assert Phase("finish") is Phase.FINISH
    assert Phase.TRAIN.value == "train"


def test_where_nothing_is_trained_every_step_counts() -> None:
    before = Cursor(phase=Phase.INFER, step=3, global_step=3, progress=4)
    assert before.after_step() == Cursor(0, Phase.INFER, 4, 4, 5)
    assert before.number_of_step == 3
