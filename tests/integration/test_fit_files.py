"""Callbacks of `fit` write their files once, by the worker that is rank 0 at the time."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

from hvd_elastic_keras import RootCallback
from hvd_elastic_keras.common import files
from tests.harness.fault_model import FaultPoint
from tests.harness.faults import Fault
from tests.harness.fit_job import FitJob, FitResult, assert_same_logs, assert_same_weights
from tests.harness.fit_scenario import Scenario, scenario
from tests.harness.job import assert_same_weights as assert_same_variables
from tests.harness.job import read_weights
from tests.harness.recorded_fit import Script
from tests.harness.small_classifier import VALIDATION, arrays, classifier, sgd

Alone = Callable[[Scenario], FitResult]


class DiesOnce(keras.callbacks.Callback):
    """Kills its worker when an epoch has ended, but not the next worker that calls it."""

    def __init__(self, note: Path, epoch: int) -> None:
        super().__init__()
        self.note, self.epoch = note, epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == self.epoch and not self.note.exists():
            self.note.touch()
            os.kill(os.getpid(), signal.SIGKILL)


OBJECTS = {"FaultPoint": FaultPoint}


@scenario(plain=True)
def lost_at_the_end_of_the_best_epoch(script: Script) -> None:
    dies = RootCallback(lambda: DiesOnce(script.files / "died", epoch=2))
    data = arrays(epochs=3, validation_data=VALIDATION)
    # At the end of the training, averages become the weights.
    model = classifier(FaultPoint(), optimizer=sgd(use_ema=True, ema_momentum=0.9))

    def note(epoch: int, logs: Any) -> None:
        np.save(script.files / f"{script.worker}.npy", model.get_weights()[0])

    notes = keras.callbacks.LambdaCallback(on_epoch_end=note)
    script.fit(model, **data, callbacks=(notes, dies))


def test_the_next_rank_0_keeps_the_best_model(tmp_path: Path) -> None:
    train, flag = lost_at_the_end_of_the_best_epoch, "--keep_best=val_loss"
    with FitJob(tmp_path, train, flag, plan=[]) as job:
        job.finish()
        found = json.loads((job.job_dir / files.BEST_RECORD).read_text())
        (history,) = job.result("w1").logs["histories"]
        saved = [(e["epoch"], e["value"]) for e in job.events("best_model_saved")]
        best = keras.models.load_model(
            job.job_dir / files.BEST, custom_objects=OBJECTS, compile=False
        )
        noted = np.load(job.files / "w1.npy")
        np.testing.assert_array_equal(best.get_weights()[0], noted)
        final = keras.models.load_model(
            job.job_dir / files.MODEL, custom_objects=OBJECTS, compile=False
        )
        assert np.abs(final.get_weights()[0] - noted).max() > 1e-3
    losses = history["val_loss"]
    assert losses == sorted(losses, reverse=True)
    assert saved == list(enumerate(losses))
    assert (found["epoch"], found["value"]) == (2, losses[2])


@scenario(plain=True)
def callbacks_that_write(script: Script) -> None:
    """Lets each worker note its epochs in its own file. All other files are shared."""
    notes = script.files / f"{script.worker}.txt"

    def note(epoch: int, logs: Any) -> None:
        with notes.open("a") as file:
            file.write(f"{epoch} ")

    c = keras.callbacks
    best = script.files / "best-{epoch:02d}.weights.h5"
    every_5_steps = script.files / "every-{epoch:02d}-{batch:02d}.keras"
    script.fit(
        classifier(FaultPoint()),
        **arrays(epochs=5, validation_data=VALIDATION),
        callbacks=(
            c.CSVLogger(str(script.files / "log.csv")),
            c.TensorBoard(str(script.files / "board"), update_freq=4),
            c.ModelCheckpoint(str(best), save_best_only=True, save_weights_only=True),
            c.ModelCheckpoint(str(every_5_steps), save_freq=5),
            c.LambdaCallback(on_epoch_begin=note, on_train_begin=lambda logs: None),
        ),
    )


def test_files_are_those_of_one_process_when_three_ranks_0_are_killed(
    tmp_path: Path, fit_alone: Alone
) -> None:
    plan = [
        Fault("gate", "train", 0, step=7, action="wait"),
        Fault("step", "train", 0, step=9, size=4),
        Fault("saving", "checkpoint", 0, step=18, size=3),
        Fault("evaluation", "evaluate", 0, step=24, size=2),
    ]
    with FitJob(tmp_path, callbacks_that_write, "--num_workers=3", plan=plan) as job:
        job.let_join("gate", "w3")
        alone = fit_alone(callbacks_that_write)
        job.finish_with(["w3"], alone)
        found, expected = job.files, alone.files
        assert_same_csv(found / "log.csv", expected / "log.csv")
        assert_same_checkpoints(found, expected, tmp_path)
        assert_same_board(found / "board", expected / "board")
        curves = EventAccumulator(str(found / "board" / "elastic")).Reload().Tags()["scalars"]
        assert {"training/loss", "job/workers"} <= set(curves), "beside the user's own"
        writers = {str(job.pid_of(worker)) for worker in ("w0", "w1", "w2", "w3")}
        for kind in ("train", "validation"):
            pids = [p.name.split(".")[-3] for p in (found / "board" / kind).iterdir()]
            assert sorted(pids) == sorted(writers)
        assert (found / "w2.txt").read_text().split() == ["0", "1", "2", "3"]
        assert (found / "w3.txt").read_text().split() == ["2", "3", "4"]


@pytest.mark.slow
def test_a_rank_0_that_is_killed_between_a_record_and_its_flush_takes_no_record_along(
    tmp_path: Path, fit_alone: Alone
) -> None:
    plan = [
        Fault("batch", "flush on_train_batch_end", 0, step=8, size=4),
        Fault("epoch", "flush on_epoch_end", 0, step=12, size=3),
        Fault("evaluation", "flush on_test_end", 0, step=24, size=2),
    ]
    with FitJob(tmp_path, callbacks_that_write, "--num_workers=4", plan=plan) as job:
        alone = fit_alone(callbacks_that_write)
        job.finish_with(["w3"], alone)
        found, expected = job.files, alone.files
        assert_same_csv(found / "log.csv", expected / "log.csv")
        assert_same_checkpoints(found, expected, tmp_path)
        assert_same_board(found / "board", expected / "board")


def assert_same_csv(found: Path, expected: Path) -> None:
    """Asserts the same rows, one per epoch."""
    (names, *rows), (other_names, *other_rows) = (
        list(csv.reader(path.read_text().splitlines())) for path in (found, expected)
    )
    assert names == other_names
    assert [row[0] for row in rows] == ["0", "1", "2", "3", "4"]
    numbers, other_numbers = ([[float(v) for v in row] for row in r] for r in (rows, other_rows))
    assert_same_logs(numbers, other_numbers, "csv")


def assert_same_checkpoints(found: Path, expected: Path, scratch: Path) -> None:
    """Asserts that `ModelCheckpoint` has written the same files."""
    names, other_names = (
        sorted(p.name for p in path.iterdir() if p.suffix in (".keras", ".h5"))
        for path in (found, expected)
    )
    assert names == other_names
    assert len(names) > 6
    for name in names:
        assert_same_variables(
            read_weights(found / name, scratch), read_weights(expected / name, scratch)
        )


def assert_same_board(found: Path, expected: Path) -> None:
    """Asserts that TensorBoard shows each value once."""
    for kind in ("train", "validation"):
        scalars = scalars_of(found / kind)
        assert "epoch_loss" in scalars
        assert_same_logs(scalars, scalars_of(expected / kind), kind)


def scalars_of(directory: Path) -> dict[str, Any]:
    """Returns [step, value] of all scalars, in the order of the steps.

    TensorBoard's own order is that of the files' names: of two processes that began to write in the
    same second, the one whose process id is the smaller *text* comes first.
    """
    board = EventAccumulator(str(directory), size_guidance={"tensors": 0})
    board.Reload()
    result: dict[str, Any] = {}
    for tag in board.Tags()["tensors"]:
        events = board.Tensors(tag)
        values = [[e.step, tensor_util.make_ndarray(e.tensor_proto)] for e in events]
        if values[0][1].dtype == "float32":
            result[tag] = sorted([step, float(value)] for step, value in values)
    return result


@scenario(plain=False)
def with_backup(script: Script) -> None:
    """Uses Keras's own way to continue after an interruption."""
    backup = keras.callbacks.BackupAndRestore(str(script.files / "backup"))
    script.fit(classifier(FaultPoint()), **arrays(shuffle=True, epochs=4), callbacks=(backup,))


@pytest.mark.slow
@pytest.mark.parametrize("job_directory", ["kept", "lost"])
def test_an_interrupted_job_goes_on_from_its_directory_or_else_from_the_users_backup(
    job_directory: str, tmp_path: Path, fit_alone: Alone
) -> None:
    plan = [Fault("gate", "train", 0, step=8, action="wait")]
    with FitJob(tmp_path, with_backup, "--num_workers=2", plan=plan) as job:
        job.wait_for_fault("gate")
        job.process.send_signal(signal.SIGINT)
        job.wait_for("job_stopping")
        job.plan.open_gate("gate")
        job.finish(exit_code=130)
        assert (job.files / "backup").is_dir()
    if job_directory == "lost":
        shutil.rmtree(job.job_dir)
    with FitJob(tmp_path, with_backup, "--num_workers=2", plan=plan) as job:
        job.finish()
        expected = fit_alone(with_backup)
        workers = ["w0", "w1"] if job_directory == "lost" else ["w2", "w3"]
        for worker in workers:
            found = job.result(worker)
            assert_same_weights(found, expected)
            epochs_before = 1 if job_directory == "lost" else 0
            history = {
                name: values[epochs_before:]
                for name, values in expected.logs["histories"][0].items()
            }
            assert_same_logs(found.logs["histories"][0], history, worker)
        assert not (job.files / "backup").exists()
