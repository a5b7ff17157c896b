"""One worker prepares a data set of tensorflow-datasets, and the others read what it has made."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hvd_elastic_keras.common import patches
from hvd_elastic_keras.state import dataset_preparation, one_writer
from hvd_elastic_keras.worker.turns import Turn


class Info:
    """What a builder knows of its files."""

    def __init__(self) -> None:
        self.read_from: list[Path] = []

    def read_from_directory(self, directory: Path) -> None:
        """Notes the directory."""
        self.read_from.append(directory)


class Builder:
    """A builder of a data set in a directory."""

    def __init__(self, directory: Path) -> None:
        self.data_dir = self.data_path = directory
        self.info = Info()
        self.prepared = 0

    def download_and_prepare(self, download_config: Any = None) -> None:
        """Makes the files anew."""
        self.prepared += 1
        self.data_path.mkdir(exist_ok=True)


class Turns:
    """Gives turns as a table says, or lets another worker make the files first."""

    def __init__(self, *mine: bool, files: Path | None = None) -> None:
        self._mine, self._files = list(mine), files

    @contextlib.contextmanager
    def turn(self, name: str, what: str, **_: Any) -> Iterator[Turn]:
        """Gives the next turn."""
        if self._files is not None:
            self._files.mkdir(exist_ok=True)
        yield Turn(self._mine.pop(0))


@pytest.mark.parametrize(
    ("mine", "shared", "prepared"),
    [
        ((True,), True, 1),
        ((False,), True, 0),
        ((False, True), False, 1),
        ((False, False), False, 0),
    ],
    ids=["first", "waits", "first with another disk", "waits with another disk"],
)
def test_each_disk_is_prepared_once_and_the_others_read_it(
    mine: tuple[bool, ...],
    shared: bool,
    prepared: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = tmp_path / "data"
    turns = Turns(*mine, files=directory if shared and not mine[0] else None)
    monkeypatch.setattr(one_writer, "turns_in_this_process", lambda: lambda: turns)
    monkeypatch.setitem(
        dataset_preparation.sys.modules,
        dataset_preparation.MODULE,
        SimpleNamespace(DatasetBuilder=Builder),
    )
    dataset_preparation._change()
    try:
        builder = Builder(directory)
        builder.download_and_prepare(download_config="anew")
    finally:
        patches.undo_all()
    assert builder.prepared == prepared
    assert builder.info.read_from == ([] if prepared else [directory])
