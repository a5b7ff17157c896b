"""Places for checkpoints: a directory on disk, or on a file system that TensorFlow reaches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, TypeAlias


class Remote(Protocol):
    """The part of `pathlib.Path` that checkpoints need; see `remote.RemotePath`."""

    @property
    def name(self) -> str:
        """Last part of the path."""

    def __truediv__(self, name: str) -> Remote: ...

    def exists(self) -> bool:
        """Whether there is such a file or directory."""

    def is_dir(self) -> bool:
        """Whether it is a directory."""

    def iterdir(self) -> Iterator[Remote]:
        """Returns the entries of the directory."""

    def mkdir(self, *, parents: bool) -> None:
        """Makes the directory, and its parents."""

    def open(self, mode: str) -> Any:
        """Opens a file to read from or to write to."""

    def read_bytes(self) -> bytes:
        """Returns the content of a file."""

    def write_bytes(self, content: bytes) -> None:
        """Writes a file."""

    def remove_tree(self) -> None:
        """Removes a directory, if it is there."""


Place: TypeAlias = Path | Remote
