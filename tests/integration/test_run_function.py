"""A function on elastic workers: its value, its errors, and what it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import hvd_elastic_keras
from hvd_elastic_keras import ElasticCallback, ElasticError, run_function
from hvd_elastic_keras.common.errors import ConfigurationError, FunctionFailedError
from tests.harness.job import Job
from tests.harness.small_classifier import arrays, classifier

KILL_AT_STEP = 8
FOLDER_OF_OTHERS = "folder_that_a_notebook_has_added"


class KillOfRank0(keras.callbacks.Callback):
    """Ends rank 0 by SIGKILL once in a job, and notes which worker it was."""

    def __init__(self, note: Path) -> None:
        super().__init__()
        self.note, self.steps = note, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        if self.steps == KILL_AT_STEP and hvd_elastic_keras.is_root() and not self.note.exists():
            self.note.write_text(os.environ["HVD_ELASTIC_WORKER_ID"])
            os.kill(os.getpid(), signal.SIGKILL)


def train(units_of_time: int, note: Path | None = None) -> dict[str, Any]:
    """Trains as in a notebook's cell; also returns which worker has returned."""
    keras.utils.set_random_seed(1)
    model = classifier()
    callbacks = [ElasticCallback(), *([KillOfRank0(note)] if note else [])]
    history = model.fit(**arrays(epochs=units_of_time), callbacks=callbacks, verbose=0)
    print("trained", len(history.history["loss"]), "epochs")
    return {
        "loss": history.history["loss"],
        "weights": model.get_weights(),
        "worker": os.environ.get("HVD_ELASTIC_WORKER_ID", "alone"),
        "path": sys.path,
    }


def divide(numerator: int) -> float:
    return numerator / 0


def train_then_fail(numerator: int) -> float:
    train(1)
    return divide(numerator)


def refuse() -> None:
    classifier().fit(**arrays(), callbacks=[ElasticCallback(micro_batch_size=-1)])


def return_a_lock() -> Any:
    train(1)
    return threading.Lock()


def test_the_value_is_that_of_one_process_and_its_lines_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path / FOLDER_OF_OTHERS))
    job_dir = tmp_path / "job"

    found = run_function(
        train, (2,), {"note": None}, num_workers=2, job_dir=job_dir, audit=True, deterministic=False
    )

    expected = train(2)
    assert found["worker"] == "w0"
    np.testing.assert_allclose(found["loss"], expected["loss"], atol=1e-5)
    for got, weights in zip(found["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(got, weights, atol=1e-5)
    assert str(tmp_path / FOLDER_OF_OTHERS) in found["path"]
    shown = capsys.readouterr().out
    assert shown.count("[w0] trained 2 epochs") == 1
    assert "[elastic] round 1: 2 workers" in shown
    assert (job_dir / "ledger").is_dir()
    assert list(job_dir.glob("function-*")) == []


@pytest.mark.slow
def test_the_value_comes_from_the_next_rank_0_if_the_first_is_killed(tmp_path: Path) -> None:
    note = tmp_path / "killed"

    found = run_function(train, (6, note), job_dir=tmp_path / "job")

    assert note.read_text() == "w0"
    assert found["worker"] != "w0"
    np.testing.assert_allclose(found["loss"], train(6)["loss"], atol=1e-5)


def test_an_error_comes_back_with_the_workers_traceback(tmp_path: Path) -> None:
    with pytest.raises(FunctionFailedError, match="ZeroDivisionError: division by zero") as caught:
        run_function(train_then_fail, (1,), job_dir=tmp_path / "job")

    text = str(caught.value)
    assert "return numerator / 0" in text
    assert "train_then_fail failed on w" in text
    assert "function_worker.py" not in text


@pytest.mark.slow
def test_a_refusal_comes_back_as_its_text(tmp_path: Path) -> None:
    with pytest.raises(FunctionFailedError, match="micro_batch_size") as caught:
        run_function(refuse, job_dir=tmp_path / "job", num_workers=1)

    assert "Traceback" not in str(caught.value)


@pytest.mark.slow
def test_a_value_that_cannot_be_sent_back_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(FunctionFailedError, match="returned a lock, which cannot be sent back"):
        run_function(return_a_lock, job_dir=tmp_path / "job", num_workers=1)


def test_a_function_that_does_not_train_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(FunctionFailedError, match="without having trained"):
        run_function(os.getpid, job_dir=tmp_path / "job", num_workers=1)


def test_what_cannot_be_pickled_is_refused_before_anything_starts(tmp_path: Path) -> None:
    job_dir = tmp_path / "job"

    with pytest.raises(ConfigurationError, match="cannot be sent to workers"):
        run_function(print, (threading.Lock(),), job_dir=job_dir)

    assert not job_dir.exists()


def test_a_flag_that_is_not_for_functions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ElasticError, match="run_function was given hosts"):
        run_function(train, (1,), job_dir=tmp_path / "job", hosts="a:1")


CALLER = """
import signal, sys
from pathlib import Path
from hvd_elastic_keras import run_function
from test_run_function import train

# As at a terminal; in the background of a shell, where tests may run, it is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
run_function(train, (100_000,), job_dir=Path(sys.argv[1]))
"""


class FunctionJob(Job):
    """A job whose launcher is started by a process that calls `run_function`."""

    def start_launcher(self, *more_flags: str) -> None:
        """Starts the calling process."""
        path = os.pathsep.join((os.environ["PYTHONPATH"], str(Path(__file__).parent)))
        self._temporary.mkdir(exist_ok=True)
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", CALLER, str(self.job_dir)],
                env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(self._temporary)},
                stdout=output,
                stderr=subprocess.STDOUT,
            )


def test_an_interrupt_stops_the_job(tmp_path: Path) -> None:
    with FunctionJob(tmp_path) as job:
        job.wait_for("checkpoint_saved")
        job.process.send_signal(signal.SIGINT)
        job.process.wait(job.limit_s)
        assert job.output.rstrip().endswith("KeyboardInterrupt")
        assert "stopped at step" in job.output
        job.assert_nothing_is_left(None)
        assert list(job.job_dir.glob("function-*")) == []


@pytest.mark.slow
def test_nothing_runs_on_when_the_caller_is_killed(tmp_path: Path) -> None:
    with FunctionJob(tmp_path) as job:
        job.wait_for("checkpoint_saved")
        job.process.kill()
        job.process.wait(job.limit_s)
        job.wait_while_alone(lambda: bool(job.events("job_finished")))
        job.wait_while_alone(lambda: not job.worker_processes())
