"""The report of a job: one page of HTML with everything that it shows. It loads nothing else.

The files in `web/` are those of the report and of the dashboard (`observe/pages.py`). They need no
other server and no build.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import msgspec

from hvd_elastic_keras._version import __version__
from hvd_elastic_keras.common import files
from hvd_elastic_keras.observe.job_course import JobCourse

DIRECTORY = Path(__file__).with_name("web")
CHARTS = ("uplot.js", "uplot.css", "charts.js", "page.css")
"""Files that both pages use."""
FILES_OF_DASHBOARD = (*CHARTS, "dashboard.js", "icon.svg")
TYPES_OF_WEB_FILES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}

SCRIPTS = ("uplot.js", "charts.js", "report.js")
STYLES = ("uplot.css", "page.css")


@functools.cache
def web_file(name: str) -> bytes:
    """Returns the content of a file."""
    return (DIRECTORY / name).read_bytes()


def type_of_web_file(name: str) -> str:
    """Returns the content type of a file.

    >>> type_of_web_file("page.css")
    'text/css; charset=utf-8'
    """
    return TYPES_OF_WEB_FILES[Path(name).suffix]


def write(job_dir: Path, target: Path) -> None:
    """Writes the report of a job, also while it runs.

    Raises:
      OSError: it cannot be written.
    """
    files.write_bytes(target, page(content(job_dir)).encode())


def content(job_dir: Path) -> dict[str, Any]:
    """Returns the content of the report, as JSON values."""
    course = JobCourse.of(job_dir)
    plain: dict[str, Any] = msgspec.to_builtins(
        {
            "job_dir": str(job_dir.resolve()),
            "version": __version__,
            "job": course.started,
            "finished": course.finished,
            "totals": course.totals,
            "newest": course.newest,
            "what_is_trained": _specification(job_dir),
            **course.since(0),
        }
    )
    return plain


def page(shown: dict[str, Any]) -> str:
    """Returns the report as HTML."""
    template = web_file("report.html").decode()
    # Inside a script element, "<" could end the script.
    data = json.dumps(shown).replace("<", "\\u003c")
    parts = {"styles": _together(STYLES), "scripts": _together(SCRIPTS), "data": data}
    for name, text in parts.items():
        before, _, after = template.partition(f"/* {name} */")
        template = before + text + after
    return template


def _together(names: tuple[str, ...]) -> str:
    return "\n".join(web_file(name).decode() for name in names)


def _specification(job_dir: Path) -> Any:
    """Returns the content of `job.json`; None if it cannot be read, as for a script."""
    try:
        return files.parse_json((job_dir / files.JOB).read_bytes())
    except (OSError, ValueError):
        return None
