"""Files of callbacks whose paths differ from worker to worker."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

keras = pytest.importorskip("keras")

from hvd_elastic_keras.loop.callback_runner import CallbackRunner
from hvd_elastic_keras.settings import env


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The worker's own directory for temporary files, as a launcher sets it."""
    scratch = tmp_path / f"{env.SCRATCH_PREFIX}w1"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    return scratch


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("is_own", [False, True])
def test_a_checkpoint_in_a_temporary_directory_is_written_by_each_worker(
    own: Path, tmp_path: Path, is_own: bool, rank: int
) -> None:
    path = Path(tempfile.mkdtemp() if is_own else tmp_path) / "best.keras"
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    runner = CallbackRunner([keras.callbacks.ModelCheckpoint(path)], model, params={})
    runner.enter_round(rank, epochs_begun=None)
    runner.call("on_epoch_end", 0, {"loss": 1.0})
    assert path.exists() == (is_own or rank == 0)
    assert runner.paths == ([] if is_own else [("ModelCheckpoint", str(path))])


def test_the_paths_of_all_writers_are_known(own: Path, tmp_path: Path) -> None:
    callbacks = [
        keras.callbacks.CSVLogger(own / "log.csv"),
        keras.callbacks.TensorBoard(tmp_path / "curves"),
        keras.callbacks.BackupAndRestore(tmp_path / "backup"),
        keras.callbacks.EarlyStopping(),
    ]
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    assert CallbackRunner(callbacks, model, params={}).paths == [
        ("CSVLogger", str(own / "log.csv")),
        ("TensorBoard", str(tmp_path / "curves")),
        ("BackupAndRestore", str(tmp_path / "backup")),
    ]
