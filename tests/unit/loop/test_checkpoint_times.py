"""Checkpoints: when they begin, on which worker, and what those written in the background hold."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras.common.protocol import ALONE
from hvd_elastic_keras.data.input.interfaces import LocalBatch
from hvd_elastic_keras.data.plan.partition import StepShare
from hvd_elastic_keras.keras_internals.model_variables import variables_of
from hvd_elastic_keras.loop.kept_on_disk import Durable
from hvd_elastic_keras.loop.leave_reason import CheckpointGuard, LeaveReason
from hvd_elastic_keras.loop.observer import EndedEpoch, Round, TakenStep
from hvd_elastic_keras.loop.observers.checkpoints import Checkpoints
from hvd_elastic_keras.loop.observers.nonfinite_loss import NonFiniteLoss
from hvd_elastic_keras.settings.options import RunOptions
from hvd_elastic_keras.state.checkpoint.store import BackgroundWriter, CheckpointStore
from hvd_elastic_keras.state.cursor import Cursor
from hvd_elastic_keras.step.step_result import StepResult
from hvd_elastic_keras.worker.reporter import TerminalReporter

STEPS, EPOCHS = 10, 3


class Training:
    """A training with steps of a minute. It calls its checkpoints and notes what they do."""

    def __init__(self, rank: int = 0, **options: Any) -> None:
        self.now, self.step = 0.0, 0
        self.done: list[tuple[str, int]] = []
        self.copies: list[bool] = []
        """Whether each checkpoint that was begun has copied the variables."""
        self.losses = NonFiniteLoss(TerminalReporter(), "warn")
        self.write: Callable[[], None] = lambda: None
        noting = Noting(self)
        self.writer = noting.writer
        self.checkpoints = Checkpoints(
            noting,
            RunOptions(**options),
            self.losses,
            CheckpointGuard(),
            before=lambda: self.note("on file"),
            clock=lambda: self.now,
        )
        self.enter(rank)

    def note(self, what: str) -> None:
        self.done.append((what, self.step))

    def enter(self, rank: int) -> None:
        """Begins a round in which this worker has the rank."""
        place = msgspec.structs.replace(ALONE, rank=rank)
        self.checkpoints.on_round(Round(place, Cursor(global_step=self.step), starts_state=False))

    def train(self, steps: int = STEPS * EPOCHS, loss: float = 0.5) -> None:
        """Takes this many steps, with the ends of epochs among them."""
        for _ in range(steps):
            self.now += 60
            cursor = Cursor(epoch=self.step // STEPS, global_step=self.step)
            step = taken(cursor, loss)
            self.step += 1
            self.losses.after_step(step)
            self.checkpoints.after_step(step)
            if self.step % STEPS == 0:
                is_last = self.step == STEPS * EPOCHS
                self.checkpoints.after_epoch(EndedEpoch(cursor, {}, is_last, shown={}))

    @property
    def begun(self) -> list[int]:
        """The steps after which a checkpoint was begun, each once."""
        return list(dict.fromkeys(step for what, step in self.done if what == "begun"))


def taken(cursor: Cursor, loss: float) -> TakenStep:
    batch = LocalBatch((), StepShare(0, 0, np.zeros(1, np.int32), 0, num_examples_of_step=64))
    return TakenStep(cursor, ALONE, batch, (), StepResult({"loss": loss}), steps_left=None)


class Noting(Durable):
    """Notes what should be kept on disk, and keeps nothing."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self._training = training

    def begin_checkpoint(self, *, copies: bool = True) -> None:
        self._training.note("begun")
        self._training.copies.append(copies)
        self.writer.start(self._training.write)

    def save_checkpoint(self) -> None:
        self._training.note("saved")

    def save_results(self) -> None:
        self._training.note("results")


NEVER = {"checkpoint_every_n_epochs": 0}


def test_nothing_is_copied_for_the_last_checkpoint_which_no_step_follows() -> None:
    training = Training()
    training.train()
    assert (training.begun, training.copies) == ([10, 20, 30], [True, True, False])


@pytest.mark.parametrize(
    ("options", "begun"),
    [
        ({}, [10, 20, 30]),
        ({"checkpoint_every_n_epochs": 2}, [20, 30]),
        ({"checkpoint_every_n_epochs": 9}, [30]),
        (NEVER, []),
        ({**NEVER, "checkpoint_every_n_steps": 7}, [7, 14, 21, 28]),
        ({**NEVER, "checkpoint_every_n_steps": 1}, list(range(1, 31))),
        ({"checkpoint_every_n_steps": 12}, [10, 12, 20, 24, 30]),
        ({**NEVER, "checkpoint_every_minutes": 12.5}, [13, 26]),
        ({"checkpoint_every_minutes": 7}, [7, 10, 17, 20, 27, 30]),
    ],
)
def test_what_is_due_first_counts(options: dict[str, Any], begun: list[int]) -> None:
    training = Training(**options)
    for _ in range(STEPS * EPOCHS):
        training.train(1)
        training.writer.wait()
    assert training.begun == begun


def test_what_comes_before_a_checkpoint_is_on_file_first() -> None:
    training = Training()
    training.train(STEPS)
    training.checkpoints.on_order_to_leave(LeaveReason.TOLD)
    assert training.done == [(what, 10) for what in ("on file", "begun", "on file", "saved")]


def test_only_one_is_written_at_a_time_and_what_is_due_meanwhile_comes_next() -> None:
    training = Training(checkpoint_every_n_steps=4)
    go_on = threading.Event()
    training.write = lambda: go_on.wait(60) and None
    training.train(11)
    assert training.begun == [4]
    go_on.set()
    training.writer.wait()
    training.train(2)
    training.writer.wait()
    training.train(2)
    assert training.begun[:2] == [4, 12]
    training.checkpoints.close()
    assert not training.writer.is_busy


def test_an_error_that_nobody_expects_ends_the_training_with_the_next_checkpoint() -> None:
    training = Training(checkpoint_every_n_steps=4)

    def fail() -> None:
        raise TypeError("unheard of")

    training.write = fail
    training.train(4)
    with pytest.raises(TypeError, match="unheard of"):
        training.train(STEPS)
    training.checkpoints.close()


def test_only_rank_0_writes_and_a_new_one_does_soon() -> None:
    training = Training(rank=1, checkpoint_every_minutes=15)
    training.train(20)
    training.checkpoints.on_order_to_leave(LeaveReason.TOLD)
    assert training.done == []
    training.enter(rank=0)
    training.train(1)
    assert training.begun == [21]
    training.checkpoints.on_end()
    assert training.done[-1] == ("results", 21)


@pytest.mark.parametrize("reason", [LeaveReason.TOLD, LeaveReason.WITHOUT_MASTER])
def test_who_leaves_with_rank_0_saves_first(reason: LeaveReason) -> None:
    training = Training()
    training.train(5)
    training.checkpoints.on_order_to_leave(reason)
    assert training.done[-1] == ("saved", 5)


@pytest.mark.parametrize("reason", [LeaveReason.EXPELLED, LeaveReason.CUT_OFF])
def test_who_leaves_without_the_others_touches_nothing(reason: LeaveReason) -> None:
    training = Training()
    training.train(5)
    training.checkpoints.on_order_to_leave(reason)
    assert training.done == []


def test_none_is_written_while_a_loss_is_not_finite() -> None:
    training = Training(checkpoint_every_n_steps=1)
    training.train(3)
    training.train(8, loss=float("nan"))
    training.checkpoints.on_order_to_leave(LeaveReason.TOLD)
    training.train(1)
    assert set(training.begun) - {1, 2, 3} == {12}
    assert ("saved", 11) not in training.done


def assigned(model: keras.Model) -> None:
    variable = model.layers[0].embeddings.value
    variable.assign_sub(tf.ones_like(variable))


def scattered(model: keras.Model) -> None:
    variable = model.layers[0].embeddings.value
    variable.scatter_sub(tf.IndexedSlices(tf.ones((1, 2)), tf.constant([0])))


def trained(model: keras.Model) -> None:
    model.train_on_batch(np.zeros((4, 1)), np.ones((4, 1, 2)))


@pytest.mark.parametrize("change", [assigned, scattered, trained])
@pytest.mark.parametrize("changed_before", [False, True])
def test_what_is_written_is_as_of_the_copy_whatever_changes_in_place_meanwhile(
    change: Callable[[keras.Model], None], changed_before: bool, tmp_path: Path
) -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Embedding(3, 2)])
    model.compile(keras.optimizers.SGD(1.0, momentum=0.9), "mse")
    trained(model)
    if changed_before:  # TensorFlow may treat the variable differently from then on
        change(model)
    variables = variables_of(model)
    expected = [v.numpy().copy() for v in variables.all]
    copies, changed = variables.values(), threading.Event()
    store, writer = CheckpointStore(tmp_path), BackgroundWriter()
    writer.start(lambda: changed.wait(60) and store.save(1, copies, {}) and None)
    change(model)
    changed.set()
    writer.wait()
    assert any(np.any(v.numpy() != e) for v, e in zip(variables.all, expected, strict=True))
    found = store.newest()
    assert found is not None
    for tensor, value in zip(store.load_tensors(*found), expected, strict=True):
        np.testing.assert_array_equal(tensor, value)
