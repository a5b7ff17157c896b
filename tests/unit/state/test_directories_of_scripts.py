"""Directories that a script makes and removes are made and removed once for the whole job."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tensorflow as tf

from hvd_elastic_keras.common import patches
from hvd_elastic_keras.state import keras_saving, one_writer
from hvd_elastic_keras.worker.turns import Turn


class Desk:
    """Gives the turns to this worker, or says that they are done."""

    def __init__(self) -> None:
        self.is_done = False
        self.asked: list[str] = []

    @contextlib.contextmanager
    def turn(self, name: str, what: str) -> Iterator[Turn]:
        self.asked.append(name)
        yield Turn(not self.is_done)


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    desk = Desk()
    monkeypatch.setattr(one_writer, "turns_of_worker", lambda: desk)
    originals, before = functions(), len(patches.installed())
    keras_saving.install_for_directories(lambda: True)
    yield desk
    while len(patches.installed()) > before:
        patches._installed.pop().undo()
    assert functions() == originals


def functions() -> tuple[object, ...]:
    return shutil.rmtree, tf.io.gfile.rmtree, os.mkdir, os.makedirs, Path.mkdir


def test_a_worker_that_comes_later_removes_nothing(tmp_path: Path, desk: Desk) -> None:
    for desk.is_done in (False, True):
        os.makedirs(tmp_path / "out", exist_ok=True)
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        assert (tmp_path / "out").exists() is desk.is_done
    assert desk.asked == [f"rmtree {tmp_path / 'out'}"] * 2


def test_what_a_library_removes_for_a_script_is_removed_once(tmp_path: Path, desk: Desk) -> None:
    """Keras Tuner removes an old directory with overwrite=True."""
    tuner = compile("rmtree(path)", "/x/site-packages/keras_tuner/src/backend/io.py", "exec")
    for remove in (shutil.rmtree, tf.io.gfile.rmtree):
        for desk.is_done in (False, True):
            os.makedirs(tmp_path / "out", exist_ok=True)
            exec(tuner, {"rmtree": remove, "path": str(tmp_path / "out")})
            assert (tmp_path / "out").exists() is desk.is_done


def test_temporary_directories_are_removed_as_ever(tmp_path: Path, desk: Desk) -> None:
    desk.is_done = True
    with tempfile.TemporaryDirectory(dir=tmp_path) as own:
        assert Path(own).exists()
    assert not Path(own).exists()
    assert desk.asked == []


@pytest.mark.parametrize("name", ["os.mkdir", "os.makedirs", "Path.mkdir"])
def test_a_directory_is_made_by_one_worker(name: str, tmp_path: Path, desk: Desk) -> None:
    owner, _, function = name.partition(".")
    make: Callable[[Path], None] = getattr({"os": os, "Path": Path}[owner], function)
    target = tmp_path / "out"
    make(target)
    assert target.is_dir()
    with pytest.raises(FileExistsError):
        make(target)  # as plainly, if this worker is the one
    desk.is_done = True
    make(target)
    target.rmdir()  # another machine does not see it
    make(target)
    assert target.is_dir()
    assert len(desk.asked) == 4
    os.makedirs(target, exist_ok=True)
    assert len(desk.asked) == 4, "nobody has to be asked"
