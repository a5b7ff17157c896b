"""Rows of `docs/performance.md`: ratios, and their distance from a limit."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from absl import flags

_ROWS = flags.DEFINE_string("rows", "", "File to which the ratios are written as well, as JSON.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One ratio.

    Attributes:
      what: what was measured.
      against: what it was divided by, measured in the same run.
      ratio: the first divided by the second.
      limit: the best possible result.
      from_limit: the measured value divided by its limit; None where the limit was not measured.
    """

    what: str
    against: str
    ratio: float
    limit: str = ""
    from_limit: float | None = None

    def __str__(self) -> str:
        limit = f"; {self.from_limit:.2f} x {self.limit}" if self.from_limit is not None else ""
        return f"{self.what}: {self.ratio:.2f} x {self.against}{limit}"


def show(rows: Sequence[Row]) -> None:
    """Prints rows, and writes them to the file of `--rows`."""
    print("\n".join(map(str, rows)), flush=True)
    if _ROWS.value:
        write(rows, Path(_ROWS.value))


def write(rows: Sequence[Row], path: Path) -> None:
    """Writes rows to a file."""
    path.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1))


def read(path: Path) -> list[Row]:
    """Reads the rows of a file."""
    return [Row(**found) for found in json.loads(path.read_text())]
