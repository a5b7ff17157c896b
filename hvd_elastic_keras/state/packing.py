"""Stores trees of JSON and bytes as a small JSON text with the bytes beside it.

In the text, `{"__bytes__": [offset, size]}` stands for the bytes. So numbers of 50 MB are sent and
written as 50 MB, and a person can still read the rest.
"""

from __future__ import annotations

import json
from typing import Any

from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.errors import ConfigurationError

MARK = "__bytes__"
MAGIC = b"hvd_elastic_keras 1\n"
"""Beginning of a message. The number is the version of this format."""
LENGTH = 8
"""Bytes that hold the length of the text in a message."""
Tree = Any
"""Dicts, lists and plain values as in JSON, and `bytes`."""


def dumps(tree: Tree) -> tuple[str, list[bytes]]:
    """Returns a tree as a JSON text and its bytes, which belong in one file in this order."""
    blobs: list[bytes] = []
    offset = 0

    def place_of(value: Any) -> dict[str, list[int]]:
        nonlocal offset
        if not isinstance(value, bytes):
            raise TypeError(f"a {type(value).__name__} is in a tree of JSON and bytes")
        blobs.append(value)
        offset += len(value)
        return {MARK: [offset - len(value), len(value)]}

    return json.dumps(tree, default=place_of), blobs


def loads(text: str | bytes, data: bytes | memoryview) -> Tree:
    """Returns the tree that was given to `dumps`.

    Args:
      data: the bytes of the tree, one after the other.

    Raises:
      ValueError: bytes are missing, or the text is no JSON.
    """
    view = memoryview(data)

    def with_bytes(found: dict[str, Any]) -> Any:
        if MARK not in found:
            return found
        match found[MARK]:
            case [int(offset), int(size)] if min(offset, size) >= 0:
                pass
            case other:
                raise ValueError(f"{other!r} is no place of bytes")
        if offset + size > len(view):
            raise ValueError(f"there are {len(view):,} bytes, expected {offset + size:,}")
        return bytes(view[offset : offset + size])

    return files.parse_json(text, object_hook=with_bytes)


def pack(tree: Tree) -> bytes:
    """Returns a tree as one message."""
    text, blobs = dumps(tree)
    head = text.encode()
    return b"".join([MAGIC, len(head).to_bytes(LENGTH, "big"), head, *blobs])


def unpack(message: bytes) -> Tree:
    """Returns the tree that was given to `pack`, on this worker or another.

    Raises:
      ConfigurationError: another release has made the message.
    """
    if not message.startswith(MAGIC):
        raise ConfigurationError(
            f"Rank 0 has sent a state that begins with {message[: len(MAGIC)]!r}, expected "
            f"{MAGIC!r}. Use the same release of hvd_elastic_keras on all hosts."
        )
    start = len(MAGIC) + LENGTH
    end = start + int.from_bytes(message[len(MAGIC) : start], "big")
    return loads(message[start:end], memoryview(message)[end:])
