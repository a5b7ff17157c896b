"""The report of a job: one file, made of what the job directory holds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_keras import ctl, report
from hvd_elastic_keras.common import events, files
from hvd_elastic_keras.observe import report_page
from hvd_elastic_keras.observe.event_log import EventLog

STEPS = events.StepsTaken(
    training=1, epoch=0, step=7, metrics={"loss": 0.5}, examples_per_s=10.0, step_s=0.1
)
END = events.EpochEnd(epoch=0, step=8, metrics={"val_loss": 0.25, "counts": [1, 2]})


@pytest.fixture
def job_dir(tmp_path: Path) -> Path:
    log = EventLog(tmp_path / files.EVENTS)
    started = events.JobStarted(
        job_dir="</script><script>alert(1)</script>", model="m", num_workers=2, training={"seed": 7}
    )
    for entry in (started, STEPS, END):
        log.write(entry)
    log.close()
    (tmp_path / files.MASTER).write_text('{"token": "secret-of-the-job"}')
    return tmp_path


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        report.main(arguments)
    return int(ended.value.code or 0)


def data_in(page: str) -> dict[str, Any]:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    found: dict[str, Any] = json.loads(text)
    return found


def test_the_report_holds_the_course_of_the_job_and_all_that_draws_it(
    job_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(str(job_dir)) == 0
    assert capsys.readouterr().out.strip() == str(job_dir / "report.html")
    page = (job_dir / "report.html").read_text()
    data = data_in(page)
    assert [(p["step"], p["values"]) for p in data["steps"]] == [(7, {"loss": 0.5})]
    assert [p["values"] for p in data["epochs"]] == [{"val_loss": 0.25}]
    assert data["job"]["training"] == {"seed": 7}
    for name in ("uplot.js", "charts.js", "report.js", "page.css"):
        assert report_page.web_file(name).decode() in page
    assert "secret-of-the-job" not in page
    assert page.count("<script>alert(1)") == 0
    assert not re.search(r'(src|href)="', page)


def test_the_report_goes_where_it_is_wanted(job_dir: Path, tmp_path: Path) -> None:
    assert exit_code(str(job_dir), f"--output={tmp_path / 'other.html'}") == 0
    assert (tmp_path / "other.html").exists()
    assert not (job_dir / "report.html").exists()


@pytest.mark.parametrize("output", ["", "--output=/no/such/directory/report.html"])
def test_what_is_missing_for_a_report_is_said(
    job_dir: Path, tmp_path: Path, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(job_dir), output] if output else [str(tmp_path / "nothing")]
    assert exit_code(*given) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert ("--output" if output else "events.jsonl") in error


def test_no_dashboard_is_shown_of_a_job_that_does_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        ctl.main([f"--job_dir={tmp_path}", "dashboard"])
    assert ended.value.code == 2
    assert "No running job was found" in capsys.readouterr().err


def test_the_package_ships_every_file_of_the_pages() -> None:
    """By the patterns of setup.py, which a wheel is made of."""
    setup = (Path(__file__).resolve().parents[3] / "setup.py").read_text()
    (patterns,) = re.findall(r'"hvd_elastic_keras": \[(.*?)\]', setup)
    package = report_page.DIRECTORY.parents[1]
    shipped = {p for pattern in re.findall(r'"(.*?)"', patterns) for p in package.glob(pattern)}
    names = {
        *report_page.FILES_OF_DASHBOARD,
        "dashboard.html",
        "report.html",
        "report.js",
        "uplot.LICENSE",
    }
    assert {path.name for path in report_page.DIRECTORY.iterdir()} == names
    assert {report_page.DIRECTORY / name for name in names} <= shipped
