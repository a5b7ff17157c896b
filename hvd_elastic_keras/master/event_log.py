"""`events.jsonl`: one JSON object per line, with `time` (seconds since 1970) and `event`."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any


class EventLog:
    """Appends entries; each is on disk (in the system's cache) when `write` returns, unless the
    disk is full."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

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
