"""The report of a job: one page of HTML with everything that it shows. It loads nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from hvd_elastic_keras._version import __version__
from hvd_elastic_keras.common import files
from hvd_elastic_keras.observe import web_files
from hvd_elastic_keras.observe.job_course import JobCourse

SCRIPTS = ("uplot.js", "charts.js", "report.js")
STYLES = ("uplot.css", "page.css")


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
    template = web_files.read("report.html").decode()
    # Inside a script element, "<" could end the script.
    data = json.dumps(shown).replace("<", "\\u003c")
    parts = {"styles": _together(STYLES), "scripts": _together(SCRIPTS), "data": data}
    for name, text in parts.items():
        before, _, after = template.partition(f"/* {name} */")
        template = before + text + after
    return template


def _together(names: tuple[str, ...]) -> str:
    return "\n".join(web_files.read(name).decode() for name in names)


def _specification(job_dir: Path) -> Any:
    """Returns the content of `job.json`; None if it cannot be read, as for a script."""
    try:
        return files.parse_json((job_dir / files.JOB).read_bytes())
    except (OSError, ValueError):
        return None
