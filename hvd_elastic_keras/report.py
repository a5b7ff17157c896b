"""Writes the course of a job as one page of HTML (`python -m hvd_elastic_keras.report --help`).

python -m hvd_elastic_keras.report JOB_DIR
python -m hvd_elastic_keras.report JOB_DIR --output=report.html
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hvd_elastic_keras.cli.command_line import parser_of
from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.errors import ConfigurationError, ElasticError
from hvd_elastic_keras.observe import job_history, report_page


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = parser_of("hvd_elastic_keras.report", __doc__ or "")
    top.add_argument("job_dir", type=Path, help="directory of a job, running or not")
    text = "where the page goes; default: report.html in the directory of the job"
    top.add_argument("--output", type=Path, help=text)
    return top


def main(arguments: Sequence[str] | None = None) -> None:
    """Parses the command line and writes the report."""
    given = parser().parse_args(arguments)
    try:
        sys.exit(report(given.job_dir, given.output))
    except ElasticError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def report(job_dir: Path, output: Path | None = None) -> int:
    """Writes the report of a job, which may still run, and prints the path of the report.

    Raises:
      ConfigurationError: there are no events, or the report cannot be written.
    """
    if not job_history.read(job_dir):
        raise ConfigurationError(
            f"There are no events in {job_dir / files.EVENTS}. Give the directory of a job that "
            "has been started."
        )
    target = output or job_dir / files.REPORT
    try:
        report_page.write(job_dir, target)
    except OSError as error:
        raise ConfigurationError(
            f"The report cannot be written to {target}: {error.strerror}. Give another file with "
            "--output."
        ) from error
    print(target)
    return 0


if __name__ == "__main__":
    main()
