"""Event files of TensorBoard: what is written again is there once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

tf = pytest.importorskip("tensorflow")

from hvd_elastic_keras.keras_internals.file_writers import RepeatedRecords, _keys_in

OTHER = "events.out.tfevents.1700000000.host.{pid}.0.v2"


def write(directory: Path, records: list[tuple[str, int]]) -> None:
    with tf.summary.create_file_writer(str(directory)).as_default():
        for tag, step in records:
            tf.summary.scalar(tag, 1.0, step=step)


def write_as_another(directory: Path, records: list[tuple[str, int]], pid: int = 1) -> Path:
    """As a process that is gone has written them."""
    write(directory, records)
    (path,) = (p for p in directory.iterdir() if f".{os.getpid()}." in p.name)
    return path.rename(directory / OTHER.format(pid=pid))


def records_of(path: Path) -> list[tuple[str, int]]:
    return list(_keys_in(path))


def test_records_that_come_again_go_from_the_old_file_and_no_others(tmp_path: Path) -> None:
    train = tmp_path / "train"
    old = write_as_another(train, [("graph", 0), ("batch", 4), ("batch", 8), ("epoch", 0)])
    write(train, [("graph", 0)])
    again = RepeatedRecords([train, tmp_path / "validation"])
    write(train, [("batch", 8), ("batch", 12)])
    again.take_out()
    again.take_out()
    # What this process had written before, as every process does, may stay twice.
    assert records_of(old) == [("graph", 0), ("batch", 4), ("epoch", 0)]
    assert sum(len(records_of(p)) for p in train.iterdir()) == 6
    assert not list(train.glob(".*"))


def test_an_old_file_that_ends_in_the_middle_of_a_record_is_read_up_to_there(
    tmp_path: Path,
) -> None:
    old = write_as_another(tmp_path, [("batch", 4), ("batch", 8)])
    old.write_bytes(old.read_bytes()[:-5])
    assert records_of(old) == [("batch", 4)]
    again = RepeatedRecords([tmp_path])
    write(tmp_path, [("batch", 4), ("batch", 8)])
    again.take_out()
    assert records_of(old) == []


def test_without_repeated_records_no_file_is_touched(tmp_path: Path) -> None:
    old = write_as_another(tmp_path, [("batch", 4)])
    before = old.stat().st_ino
    again = RepeatedRecords([tmp_path, tmp_path / "nothing is here"])
    write(tmp_path, [("batch", 8)])
    again.take_out()
    assert old.stat().st_ino == before
