"""`events.jsonl`: one JSON object per line, with `time` (seconds since 1970) and `event`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any


class EventLog:
    """Appends entries; every entry is on disk (in the system's cache) when `write` returns."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def write(self, event: str, fields: dict[str, Any]) -> None:
        """Appends one entry."""
        entry = {"time": round(time.time(), 3), "event": event, **fields}
        self._file.write(json.dumps(entry) + "\n")

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
