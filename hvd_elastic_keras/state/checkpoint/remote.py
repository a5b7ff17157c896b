"""Directories that only TensorFlow's file systems reach, such as gs://bucket/job and ram://job."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.common import files
from hvd_elastic_keras.state.checkpoint.places import Place

SCHEME = "://"
gfile = tf.io.gfile


def place_of(name: str) -> Place:
    """Returns the directory of a name, which may begin with a scheme."""
    return RemotePath(name) if SCHEME in name else Path(name)


def checkpoints_of(job_dir: Path, training: int, elsewhere: str) -> Place:
    """Returns the directory for the checkpoints of a job's training number `training` (from 1).

    Args:
      elsewhere: directory to use in place of the job directory, if it is not empty.
    """
    if not elsewhere:
        return files.training_dir(job_dir, training) / files.CHECKPOINTS
    place = place_of(elsewhere)
    return place if training <= 1 else place / f"training-{training}"


class RemotePath:
    """The part of `pathlib.Path` that checkpoints need; it also raises `OSError`s."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def __str__(self) -> str:
        return self._url

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(f"{self._url}/{name}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and other._url == self._url

    def __hash__(self) -> int:
        return hash(self._url)

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self._url.rsplit("/", 1)[1]

    def exists(self) -> bool:
        """Whether there is such a file or directory."""
        with _os_errors():
            return bool(gfile.exists(self._url))

    def is_dir(self) -> bool:
        """Whether it is a directory."""
        with _os_errors():
            return bool(gfile.isdir(self._url))

    def iterdir(self) -> Iterator[RemotePath]:
        """Returns the entries of the directory."""
        with _os_errors():
            names = gfile.listdir(self._url)
        return (self / name.rstrip("/") for name in names)

    def mkdir(self, *, parents: bool) -> None:
        """Makes the directory, and its parents."""
        with _os_errors():
            gfile.makedirs(self._url)

    def open(self, mode: str) -> Any:
        """Opens a file to read from or to write to."""
        return gfile.GFile(self._url, mode)

    def read_bytes(self) -> bytes:
        """Returns the content of a file."""
        with _os_errors(), self.open("rb") as file:
            return bytes(file.read())

    def write_bytes(self, content: bytes) -> None:
        """Writes a file."""
        with _os_errors(), self.open("wb") as file:
            file.write(content)

    def remove_tree(self) -> None:
        """Removes a directory, if it is there."""
        with contextlib.suppress(tf.errors.OpError):
            gfile.rmtree(self._url)


@contextlib.contextmanager
def _os_errors() -> Iterator[None]:
    try:
        yield
    except tf.errors.OpError as error:
        raise OSError(error.message or type(error).__name__) from error
