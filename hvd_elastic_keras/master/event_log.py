"""`events.jsonl`: one JSON object per line, with `time` (seconds since 1970) and `event`."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any


class EventLog:
    """Appends entries; each is on disk (in the system's cache) when `write` returns, unless the
    disk is full."""

    def __init__(self, path: Path) -> None:
        torn = _is_torn(path)
        self._file = path.open("a", buffering=1)
        if torn:
            with contextlib.suppress(OSError):
                self._file.write("\n")

    def write(self, event: str, fields: dict[str, Any]) -> None:
        """Appends one entry."""
        entry = {"time": round(time.time(), 3), "event": event, **fields}
        # A full disk must not stop the master between two decisions.
        with contextlib.suppress(OSError):
            self._file.write(json.dumps(entry) + "\n")

    def close(self) -> None:
        """Closes the file."""
        with contextlib.suppress(OSError):
            self._file.close()


def _is_torn(path: Path) -> bool:
    """Whether the last line has no end, because a launcher was killed while it wrote."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read(1) not in (b"", b"\n")
    return False
