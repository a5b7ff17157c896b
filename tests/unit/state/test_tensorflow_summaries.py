"""Only the root records the summaries that a script writes for TensorBoard."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from hvd_elastic_keras.common import patches
from hvd_elastic_keras.state import one_writer, tensorflow_summaries


class Worker:
    """Is the root, or is not."""

    root = True

    def is_root(self) -> bool:
        return self.root


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    worker = Worker()
    monkeypatch.setattr(one_writer, "turns_of_worker", lambda: worker)
    entered: list[Any] = []
    monkeypatch.setattr(tensorflow_summaries, "_entered", entered)
    original = tf.summary.create_file_writer
    tensorflow_summaries.install(lambda: True)
    yield worker
    for context in reversed(entered):
        context.__exit__(None, None, None)
    patches._installed.pop().undo()
    assert tf.summary.create_file_writer is original


def steps_in(folder: Path) -> list[int]:
    files = sorted(folder.glob("events*"))
    events = (e for file in files for e in tf.compat.v1.train.summary_iterator(str(file)))
    return [event.step for event in events if event.summary.value]


def test_a_block_with_a_writer_records_on_the_root_whoever_that_is_by_then(
    tmp_path: Path, worker: Worker
) -> None:
    writer = tf.summary.create_file_writer(str(tmp_path))
    for step, worker.root in enumerate((True, False, True)):
        with writer.as_default():
            assert bool(tf.summary.scalar("loss", 1.0, step=step)) is worker.root
    writer.close()
    assert steps_in(tmp_path) == [0, 2]


def test_so_does_a_writer_that_is_the_default_one_for_ever(tmp_path: Path, worker: Worker) -> None:
    writer = tf.summary.create_file_writer(str(tmp_path))
    writer.set_as_default(step=5)
    gc.collect()
    tf.summary.scalar("loss", 1.0)
    worker.root = False
    tf.summary.scalar("loss", 1.0)
    writer.flush()
    assert steps_in(tmp_path) == [5]


def test_a_script_that_decides_itself_who_writes_is_left_alone(
    tmp_path: Path, worker: Worker
) -> None:
    worker.root = False
    with one_writer.direct():
        writer = tf.summary.create_file_writer(str(tmp_path))
    with writer.as_default():
        tf.summary.scalar("loss", 1.0, step=1)
    writer.close()
    assert steps_in(tmp_path) == [1]
