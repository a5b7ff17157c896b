"""Tables for people."""

from __future__ import annotations

from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows of texts, one below the other, in aligned columns.

    >>> print(table([("WORKER", "STEP"), ("w0", "12")]))
    WORKER  STEP
    w0      12
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)
