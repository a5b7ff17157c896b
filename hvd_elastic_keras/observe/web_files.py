"""The files of the dashboard and the report, which need no other server and no build."""

from __future__ import annotations

import functools
from pathlib import Path

DIRECTORY = Path(__file__).with_name("web")
CHARTS = ("uplot.js", "uplot.css", "charts.js", "page.css")
"""Files that both pages use."""
OF_DASHBOARD = (*CHARTS, "dashboard.js", "icon.svg")
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


@functools.cache
def read(name: str) -> bytes:
    """Returns the content of a file."""
    return (DIRECTORY / name).read_bytes()


def type_of(name: str) -> str:
    """Returns the content type of a file.

    >>> type_of("page.css")
    'text/css; charset=utf-8'
    """
    return TYPES[Path(name).suffix]
