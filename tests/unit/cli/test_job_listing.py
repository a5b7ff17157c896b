"""What `ctl list` and `ctl logs` show, without a job that runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_keras.cli import control_job
from hvd_elastic_keras.cli.functions import run_function
from hvd_elastic_keras.cli.local_commands import Logs, show_jobs, show_logs
from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.errors import ConfigurationError, MasterUnreachableError

ROOT = Path(__file__).resolve().parents[3]
FINISHED = {"event": "job_finished", "status": "finished", "reason": "", "training": 1, "step": 90}


def job(name: str, *entries: dict[str, Any], written: int = 0) -> Path:
    """Makes the directory of a job whose launcher is gone; `written` is a time."""
    directory = Path("jobs", name)
    (directory / "logs").mkdir(parents=True)
    log = directory / "events.jsonl"
    lines = [json.dumps({"seq": 1, "time": 1.0, **entry}) + "\n" for entry in entries]
    log.write_text("".join(lines))
    os.utime(log, (written, written))
    return directory


@pytest.fixture(autouse=True)
def _directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_job_of_a_function_is_continued_by_another_call(
    capsys: pytest.CaptureFixture[str],
) -> None:
    directory = job("calls", {**FINISHED, "status": "stopped", "reason": "interrupted"})
    script = {"version": 1, "script": [str(run_function.WORKER), "function-1"], "seed": 0}
    (directory / files.JOB).write_text(json.dumps(script))
    assert control_job.show_status(directory, as_json=False) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "to continue: call run_function again, with job_dir='jobs/calls'"


@pytest.mark.parametrize(
    ("last", "told"),
    [
        ({}, ["finished at step 90"]),
        (
            {"status": "stopped", "reason": "interrupted", "training": 2},
            [
                "stopped at step 90 of training 2: interrupted",
                "to continue: python -m hvd_elastic_keras.run --resume --job_dir='jobs/of mine'",
            ],
        ),
    ],
)
def test_the_status_of_a_job_that_has_ended_is_how(
    last: dict[str, Any], told: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    directory = job("of mine", {**FINISHED, **last})
    assert control_job.show_status(directory, as_json=False) == 0
    assert capsys.readouterr().out.splitlines() == told
    assert control_job.show_status(directory, as_json=True) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["step"], shown["workers"]) == (90, [])
    assert shown["phase"] == last.get("status", "finished")


def test_a_job_that_has_ended_takes_no_command_and_says_how_it_ended() -> None:
    directory = job("of mine", FINISHED)
    with pytest.raises(ConfigurationError, match=r"of mine: the last one finished at step 90\."):
        control_job.stop(directory)


def test_there_is_no_status_of_a_job_whose_launcher_was_killed() -> None:
    directory = job("killed", {"event": "job_stopping", "reason": "?"})
    with pytest.raises(ConfigurationError, match="No running job was found"):
        control_job.show_status(directory, as_json=False)


def test_jobs_are_listed_with_how_they_ended(capsys: pytest.CaptureFixture[str]) -> None:
    job("old", FINISHED, written=1_000_000_000)
    job("killed", FINISHED, {"event": "job_stopping", "reason": "?"}, written=1_100_000_000)
    job("new", {**FINISHED, "status": "stopped", "step": 7}, written=1_200_000_000)
    assert show_jobs() == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["JOB", "STATE", "STEP", "WORKERS", "LAST", "WRITTEN"]
    found = [line.split()[:4] for line in lines]
    assert found == [
        ["new", "stopped", "7", "-"],
        ["killed", "no", "answer", "-"],
        ["old", "finished", "90", "-"],
    ]


def test_silent_launchers_are_asked_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    both_are_asked = threading.Barrier(2)

    def silent(job_dir: Path, timeout_s: float) -> None:
        both_are_asked.wait(10)
        raise MasterUnreachableError("silent")

    monkeypatch.setattr(control_job, "read_status", silent)
    job("a", written=1)
    job("b", written=2)
    assert show_jobs() == 0
    assert [line.split()[:3] for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["b", "no", "answer"],
        ["a", "no", "answer"],
    ]


def test_without_jobs_the_list_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_jobs() == 0
    assert capsys.readouterr().out == "There are no jobs in ./jobs.\n"


def test_logs_of_all_workers_name_the_worker(capsys: pytest.CaptureFixture[str]) -> None:
    directory = job("a", FINISHED)
    for name, text in (("w10", "ten\n"), ("w2", "two\nlast"), ("launcher", "no worker\n")):
        (directory / "logs" / f"{name}.log").write_text(text)
    assert show_logs(directory, "", follow=False) == 0
    assert capsys.readouterr().out == "w2| two\nw2| last\nw10| ten\n"
    assert show_logs(directory, "w10", follow=True) == 0  # its launcher is gone
    assert capsys.readouterr().out == "ten\n"


def test_a_line_that_is_being_written_waits_for_its_end() -> None:
    directory = job("a")
    log = directory / "logs" / "w0.log"
    log.write_text("one\nhal")
    logs = Logs(directory, "w0")
    assert list(logs.new_lines(ended=False)) == ["one"]
    with log.open("a") as file:
        file.write("f\nend")
    assert list(logs.new_lines(ended=False)) == ["half"]
    assert list(logs.new_lines(ended=True)) == ["end"]
    assert list(logs.new_lines(ended=True)) == []


def test_a_reader_that_has_seen_enough_causes_no_error() -> None:
    directory = job("a", FINISHED)
    (directory / "logs" / "w0.log").write_text("line\n" * 100_000)
    command = [sys.executable, "-m", "hvd_elastic_keras.ctl", f"--job_dir={directory}", "logs"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"w0| line\n"
        process.stdout.close()
        assert process.wait(60) == 0
        assert process.stderr.read() == b""


@pytest.mark.parametrize(
    ("worker", "words"),
    [
        ("w7", "The worker 'w7' has no log"),
        ("../logs/w0", "expected one of w0"),
        ("/tmp/w0", "expected one of w0"),
        ("w*", "expected one of w0"),
    ],
)
def test_a_worker_without_a_log_is_refused(worker: str, words: str) -> None:
    directory = job("a")
    (directory / "logs" / "w0.log").write_text("")
    with pytest.raises(ConfigurationError, match=words):
        show_logs(directory, worker, follow=False)


def test_a_job_without_logs_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="expected a job whose workers have started"):
        show_logs(job("a"), "", follow=False)
