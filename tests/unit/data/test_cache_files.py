"""Workers on one machine keep the elements of `cache(filename)` in files of their own."""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tempfile
from pathlib import Path

import pytest
import tensorflow as tf

from hvd_elastic_keras.common import patches
from hvd_elastic_keras.data.sources import cache_files


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns the name that a script gives."""
    monkeypatch.setattr(cache_files, "_own", {})
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "data").mkdir()
    return str(tmp_path / "data" / "train")


def numbers(name: str) -> tf.data.Dataset:
    return tf.data.Dataset.range(5).map(lambda x: x * 2).cache(name)


def is_read_from_files(name: str) -> bool:
    other = tf.data.Dataset.range(5, 10).cache(name)
    return [int(x) for x in other] == [0, 2, 4, 6, 8]


def test_no_name_is_the_memory() -> None:
    assert cache_files.own_name("") == ""


def test_a_name_whose_files_are_complete_is_used_as_it_is(name: str) -> None:
    assert len(list(numbers(name))) == 5
    assert cache_files.own_name(name) == name


def test_another_process_that_writes_the_files_does_not_matter(name: str) -> None:
    other = iter(numbers(name))
    next(other)
    with pytest.raises(tf.errors.AlreadyExistsError):
        next(iter(numbers(name)))
    assert len(list(numbers(cache_files.own_name(name)))) == 5


def test_one_worker_makes_the_files_of_the_script(name: str) -> None:
    own = cache_files.own_name(name)
    assert own != name
    cache_files.publish()
    assert not list(Path(name).parent.iterdir())
    assert len(list(numbers(own))) == 5
    cache_files.publish()
    assert is_read_from_files(name)
    assert {path.suffix for path in Path(name).parent.iterdir()} == {
        ".index",
        ".data-00000-of-00001",
    }
    assert is_read_from_files(own)
    cache_files.publish()  # the others find them


def test_files_are_copied_where_they_cannot_be_linked(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise OSError("another disk")

    monkeypatch.setattr(os, "link", fail)
    assert len(list(numbers(cache_files.own_name(name)))) == 5
    cache_files.publish()
    assert is_read_from_files(name)


def test_files_that_another_worker_is_making_are_left_to_it(name: str) -> None:
    assert len(list(numbers(cache_files.own_name(name)))) == 5
    claim = Path(name + cache_files.CLAIM)
    claim.touch()
    cache_files.publish()
    assert list(Path(name).parent.iterdir()) == [claim]


def test_a_process_without_a_master_is_left_alone() -> None:
    original = tf.data.Dataset.cache
    cache_files.install()
    assert tf.data.Dataset.cache is original
    assert not patches.is_installed(cache_files.WHY)
