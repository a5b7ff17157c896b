"""The work of the `report` command."""

from __future__ import annotations

from pathlib import Path

from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.observe import report_page


def report(job_dir: Path, output: Path | None = None) -> int:
    """Writes the report of a job, which may still run, and prints the path of the report.

    Raises:
      ConfigurationError: there are no events, or the report cannot be written.
    """
    if not (job_dir / files.EVENTS).is_file():
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
