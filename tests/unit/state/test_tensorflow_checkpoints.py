"""`tf.train` checkpoints of several workers: one writes, and the objects of all tell the same."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf

from hvd_elastic_keras.common import patches
from hvd_elastic_keras.state import one_writer, tensorflow_checkpoints
from hvd_elastic_keras.worker.turns import Turn


class Desk:
    """Gives all turns to one worker, and tells the others what that one has done."""

    def __init__(self) -> None:
        self.writes = True
        self.results: dict[str, str] = {}

    @contextlib.contextmanager
    def turn(self, name: str, what: str) -> Iterator[Turn]:
        turn = Turn(self.writes, self.results.get(name, ""))
        yield turn
        self.results[name] = turn.result


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    desk = Desk()
    monkeypatch.setattr(one_writer, "turns_of_worker", lambda: desk)
    before = len(patches.installed())
    originals = tf.train.Checkpoint.save, tf.train.Checkpoint._write
    tensorflow_checkpoints.install()
    yield desk
    while len(patches.installed()) > before:
        patches._installed.pop().undo()
    assert originals == (tf.train.Checkpoint.save, tf.train.Checkpoint._write)


class Script:
    """The objects of one worker: a variable, a checkpoint of it and a manager."""

    def __init__(self, directory: Path, desk: Desk) -> None:
        self.desk = desk
        self.value = tf.Variable(0.0)
        self.checkpoint = tf.train.Checkpoint(value=self.value)
        self.manager = tf.train.CheckpointManager(self.checkpoint, str(directory), max_to_keep=2)
        known: dict[str, tensorflow_checkpoints._Saved] = {}
        original = tf.train.CheckpointManager.save.__wrapped__
        self._save = tensorflow_checkpoints._by_one_worker(original, known)

    def save(self, value: float, writes: bool) -> str:
        self.value.assign(value)
        self.desk.writes = writes
        return Path(self._save(self.manager)).name

    @property
    def told(self) -> tuple[int, list[str], str]:
        kept = [Path(p).name for p in self.manager.checkpoints]
        return int(self.checkpoint.save_counter), kept, Path(self.manager.latest_checkpoint).name


def test_a_worker_that_does_not_write_has_the_same_counter_and_list_and_leaves_the_files_alone(
    tmp_path: Path, desk: Desk
) -> None:
    root, other = (Script(tmp_path, desk) for _ in range(2))
    for value in (1.0, 2.0, 3.0):
        path = root.save(value, writes=True)
        files = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
        assert other.save(-value, writes=False) == path
        assert other.told == root.told
        assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == files
    assert root.told == (3, ["ckpt-2", "ckpt-3"], "ckpt-3")
    other.checkpoint.restore(other.manager.latest_checkpoint).assert_consumed()
    assert float(other.value) == 3.0


@pytest.mark.parametrize("writes", [False, True])
def test_a_worker_that_was_not_there_before_goes_on_where_the_others_are(
    tmp_path: Path, desk: Desk, writes: bool
) -> None:
    root, late = (Script(tmp_path, desk) for _ in range(2))
    for value in (1.0, 2.0, 3.0):
        root.save(value, writes=True)
    if not writes:
        root.save(4.0, writes=True)
    assert late.save(4.0, writes) == "ckpt-4"
    assert late.told == (4, ["ckpt-3", "ckpt-4"], "ckpt-4")
    names = {p.stem for p in tmp_path.iterdir()}
    assert names == {"checkpoint", "ckpt-3", "ckpt-4"}


def test_a_new_object_begins_to_count_anew_as_in_one_process(tmp_path: Path, desk: Desk) -> None:
    script = Script(tmp_path, desk)
    script.save(1.0, writes=True)
    script.save(2.0, writes=True)
    script.manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(value=script.value), str(tmp_path), max_to_keep=2
    )
    assert script.save(3.0, writes=True) == "ckpt-1"


def test_weights_written_without_a_counter_hold_nothing_else(tmp_path: Path, desk: Desk) -> None:
    path = str(tmp_path / "weights")
    value = tf.Variable(5.0)
    assert tf.train.Checkpoint(value=value).write(path) == path
    desk.writes = False
    other = tf.Variable(0.0)
    assert tf.train.Checkpoint(value=other).write(path) == path
    tf.train.Checkpoint(value=other).read(path).assert_consumed()
    assert float(other) == 5.0


def test_a_checkpoint_written_beside_the_training_is_there_when_the_others_go_on(
    tmp_path: Path, desk: Desk
) -> None:
    options = tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)
    path = tf.train.Checkpoint(value=tf.Variable(5.0)).save(str(tmp_path / "a"), options=options)
    assert Path(f"{path}.index").exists()
    assert options.experimental_enable_async_checkpoint
