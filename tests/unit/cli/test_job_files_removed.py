"""The directory of a job that runs is removed, moved or emptied."""

from __future__ import annotations

import io
import json
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hvd_elastic_keras.cli.job_directory import locked
from hvd_elastic_keras.cli.removed_directory import JobFiles
from hvd_elastic_keras.common import events, files
from hvd_elastic_keras.common.locks import LockHeldError
from hvd_elastic_keras.master.machine.decisions import decisions_of
from hvd_elastic_keras.master.term import Term
from hvd_elastic_keras.observe.console import Console
from hvd_elastic_keras.observe.event_log import EventLog
from tests.unit.master.membership_driver import running_job

ENTRY = events.JobStopping(reason="interrupted")
ANOTHER_JOB = """
import shutil, sys
from pathlib import Path
from hvd_elastic_keras.cli.job_directory import locked
from tests.unit.cli.test_job_files_removed import RunningJob

job = RunningJob(Path(sys.argv[1]))
job.kill_workers = lambda: print("workers are killed")
shutil.rmtree(job.job_dir)
job.job_dir.mkdir()
of_another = locked(job.job_dir)
job.files.look()
"""


class RunningJob:
    """The launcher's part of a job, which writes journal and events."""

    def __init__(self, job_dir: Path) -> None:
        job_dir.mkdir()
        self.job_dir, self.output = job_dir, io.StringIO()
        self.lock = locked(job_dir)
        self.console = Console(self.output)
        self.log = EventLog(job_dir / files.EVENTS)
        self.log.write(ENTRY)
        self.term = Term(job_dir, ("--model=x",), self.console)
        self.term.keep(decisions_of(running_job(2).state, {}, {}, {}))
        (job_dir / files.JOB).write_text("{}")
        files.write_endpoint(job_dir, "127.0.0.1:1", "token")
        self.files = JobFiles(job_dir, self.console, self)

    def begin_files_again(self) -> None:
        self.log.begin_again()
        self.term.begin_journal_again()

    def kill_workers(self) -> None:
        raise AssertionError("the job goes on")

    def told(self) -> list[str]:
        return self.output.getvalue().splitlines()


@pytest.fixture
def job(tmp_path: Path) -> RunningJob:
    return RunningJob(tmp_path / "job")


def test_as_long_as_it_is_there_nothing_is_told(job: RunningJob) -> None:
    job.files.look()
    assert job.told() == []


def empty(path: Path) -> None:
    for found in path.iterdir():
        shutil.rmtree(found) if found.is_dir() else found.unlink()


@pytest.mark.parametrize("remove", [shutil.rmtree, empty, lambda path: path.rename(f"{path}.old")])
def test_it_is_made_again_and_told_once(job: RunningJob, remove: Callable[[Path], None]) -> None:
    for _again in range(2):
        remove(job.job_dir)
        job.files.look()
        shutil.rmtree(f"{job.job_dir}.old", ignore_errors=True)
    job.files.look()
    (line,) = job.told()
    assert f"{job.job_dir} was removed" in line
    assert "Training goes on and writes there again" in line
    assert files.read_endpoint(job.job_dir).token == "token"
    assert stat.S_IMODE((job.job_dir / files.MASTER).stat().st_mode) == 0o600
    assert (job.job_dir / files.JOB).read_text() == "{}"
    before = Term(job.job_dir, (), job.console).before
    assert before is not None
    assert len(before.workers) == 2
    job.log.write(ENTRY)
    entry = json.loads((job.job_dir / files.EVENTS).read_text())
    assert entry["seq"] == 2, "one is missing before it"
    with pytest.raises(LockHeldError):
        locked(job.job_dir)


def test_a_file_alone_is_made_again_under_the_same_lock(job: RunningJob) -> None:
    (job.job_dir / files.EVENTS).unlink()
    job.files.look()
    assert (job.job_dir / files.EVENTS).exists()
    assert len(job.told()) == 1


def test_as_long_as_it_cannot_be_made_again_that_is_told_once(job: RunningJob) -> None:
    shutil.rmtree(job.job_dir)
    job.job_dir.write_text("a file is in the way")
    for _again in range(3):
        job.files.look()
    (line,) = job.told()
    assert "cannot be made again (Not a directory)" in line
    job.job_dir.unlink()
    job.files.look()
    assert "Training goes on and writes there again" in job.told()[1]
    assert (job.job_dir / files.EVENTS).exists()


def test_if_another_job_runs_there_this_one_ends_and_touches_nothing(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ANOTHER_JOB, str(tmp_path / "job")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    assert {p.name for p in (tmp_path / "job").iterdir()} <= {files.LOCK, files.LOGS}
