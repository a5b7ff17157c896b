"""Callbacks that report to an experiment tracker make one run, also when rank 0 changes."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest

from hvd_elastic_keras import RootCallback
from tests.harness.fault_model import FaultPoint
from tests.harness.faults import Fault
from tests.harness.fit_job import FitJob, FitResult
from tests.harness.fit_scenario import Scenario, scenario
from tests.harness.recorded_fit import Script
from tests.harness.small_classifier import VALIDATION, arrays, classifier

Alone = Callable[[Scenario], FitResult]
KILLED_IN_THE_FOURTH_EPOCH = [Fault("killed", "train", 0, step=20, size=2)]
NEEDS_MLFLOW = pytest.mark.skipif(
    importlib.util.find_spec("mlflow") is None, reason="mlflow is not installed"
)


class Reports(keras.callbacks.Callback):
    """Appends to a file, as to a tracker: which worker has begun, and the loss of each epoch."""

    def __init__(self, path: Path, worker: str) -> None:
        super().__init__()
        self.path, self.worker, self.batches = path, worker, 0

    def on_train_begin(self, logs: Any = None) -> None:
        assert self.model.optimizer is not None
        assert self.params["epochs"] == 5
        self.report("begin", self.worker)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches += 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.report(epoch, logs["loss"])

    def on_train_end(self, logs: Any = None) -> None:
        self.report("end", self.worker)

    def report(self, *values: Any) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(values) + "\n")


def train(script: Script, *callbacks: keras.callbacks.Callback) -> None:
    data = arrays(epochs=5, validation_data=VALIDATION)
    script.fit(classifier(FaultPoint()), **data, callbacks=callbacks)


@scenario(plain=True)
def reports(script: Script) -> None:
    def make() -> Reports:
        return Reports(script.files / "reports.txt", script.worker)

    train(script, RootCallback(make))


@scenario(plain=True)
def reports_again(script: Script) -> None:
    def make() -> list[Reports]:
        return [Reports(script.files / f"{script.worker}.txt", script.worker)]

    train(script, RootCallback(make, repeat_epochs=True))


@scenario(plain=True)
def with_mlflow(script: Script) -> None:
    import mlflow

    note = script.files / "mlflow_run"

    def make() -> keras.callbacks.Callback:
        mlflow.set_tracking_uri(str(script.files / "mlruns"))
        if note.exists():
            mlflow.start_run(run_id=note.read_text())
        else:
            note.write_text(mlflow.start_run().info.run_id)
        return mlflow.keras.MlflowCallback()

    train(script, RootCallback(make))


def told(path: Path) -> list[list[Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rank_0_alone_reports_and_the_next_one_goes_on(tmp_path: Path, fit_alone: Alone) -> None:
    with FitJob(tmp_path, reports, plan=KILLED_IN_THE_FOURTH_EPOCH) as job:
        alone = fit_alone(reports)
        job.finish_with(["w1"], alone)
        found = told(job.files / "reports.txt")

    assert [f for f in found if isinstance(f[0], str)] == [
        ["begin", "w0"],
        ["begin", "w1"],
        ["end", "w1"],
    ]
    epochs = [f for f in found if isinstance(f[0], int)]
    expected = [f for f in told(alone.files / "reports.txt") if isinstance(f[0], int)]
    assert [e[0] for e in epochs] == [e[0] for e in expected] == [0, 1, 2, 3, 4]
    assert [e[1] for e in epochs] == pytest.approx([e[1] for e in expected], abs=1e-5)


def test_a_new_rank_0_repeats_the_epochs_if_it_is_asked_to(
    tmp_path: Path, fit_alone: Alone
) -> None:
    with FitJob(tmp_path, reports_again, plan=KILLED_IN_THE_FOURTH_EPOCH) as job:
        job.finish_with(["w1"], fit_alone(reports_again))

        assert [f[0] for f in told(job.files / "w0.txt")] == ["begin", 0, 1, 2]
        assert [f[0] for f in told(job.files / "w1.txt")] == ["begin", 0, 1, 2, 3, 4, "end"]


@NEEDS_MLFLOW
def test_mlflow_has_one_run_with_each_epoch_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    with FitJob(tmp_path, with_mlflow, plan=KILLED_IN_THE_FOURTH_EPOCH) as job:
        job.finish()
        assert job.plan.happened("killed")
        (losses,) = (job.files / "mlruns").glob("*/*/metrics/loss")
        (validation,) = (job.files / "mlruns").glob("*/*/metrics/val_loss")

    for path in (losses, validation):
        steps = [int(line.split()[2]) for line in path.read_text().splitlines()]
        assert steps == [0, 1, 2, 3, 4]
