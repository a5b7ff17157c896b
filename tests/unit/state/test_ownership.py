"""Jobs that are to write their checkpoints to the same directory."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

tf = pytest.importorskip("tensorflow")

from hvd_elastic_keras.common import files, locks
from hvd_elastic_keras.common.errors import CheckpointNotWrittenError, ConfigurationError
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.state.checkpoint import ownership
from hvd_elastic_keras.state.checkpoint.ownership import Owner
from hvd_elastic_keras.state.checkpoint.places import Place
from hvd_elastic_keras.state.checkpoint.remote import place_of

WORKER = """
import sys
from pathlib import Path
from hvd_elastic_keras.state.checkpoint import ownership
try:
    ownership.claim(Path(sys.argv[1]))
    print("claimed", flush=True)
except Exception as error:
    print(error, flush=True)
sys.stdin.read()
"""


class Worker:
    """A process of a job, which claims a directory."""

    def __init__(self, directory: Path, job_id: str) -> None:
        told = env.WorkerEnvironment("host:1", "token", "w0", f"/jobs/{job_id}", job_id=job_id)
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(directory)],
            env={**os.environ, **told.to_variables()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextlib.contextmanager
def worker(directory: Path, job_id: str) -> Iterator[Worker]:
    started = Worker(directory, job_id)
    with started.process:
        try:
            yield started
        finally:
            started.process.kill()


def test_all_workers_of_a_job_share_it_and_another_job_is_refused_until_the_last_is_gone(
    tmp_path: Path,
) -> None:
    place = tmp_path / "checkpoints"
    with worker(place, "a") as first:
        assert first.answer() == "claimed"
        with worker(place, "a") as second:
            assert second.answer() == "claimed"
            first.process.kill()
            first.process.wait()
            with worker(place, "b") as other:
                told = other.answer()
                assert "are those of the job of /jobs/a on" in told
                assert f"which runs (process {second.process.pid} " in told
            with pytest.raises(ConfigurationError, match="are those of the job of /jobs/a"):
                ownership.check_free(place, "b")
            ownership.check_free(place, "a")
    ownership.check_free(place, "b")
    with worker(place, "b") as other:
        assert other.answer() == "claimed"
    assert (place / ownership.NAME).stat().st_mode & 0o777 == 0o600


def test_of_jobs_that_start_at_once_one_gets_it(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(worker(tmp_path, f"job{n}")) for n in range(6)]
        answers = [job.answer() for job in jobs]
    assert answers.count("claimed") == 1, answers


def test_a_directory_that_cannot_be_made_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert ownership.claim(tmp_path / "file" / "checkpoints")
    ownership.check_free(tmp_path / "file" / "checkpoints", "b")


def test_where_there_are_no_locks_a_launcher_of_this_machine_shows_that_a_job_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place: Place = place_of(f"file://{tmp_path}/shared")
    host = ownership.of_process().host  # type: ignore[union-attr]
    mine, theirs = Owner("mine", "/jobs/mine", host), Owner("theirs", str(tmp_path), host)
    (tmp_path / files.JOB_ID).write_text("theirs\n")
    monkeypatch.setattr(ownership, "of_process", lambda: theirs)
    ownership.claim(place)
    monkeypatch.setattr(ownership, "of_process", lambda: mine)
    launcher = locks.lock(tmp_path / files.LOCK)
    with pytest.raises(ConfigurationError, match=f"which runs .process {os.getpid()} "):
        ownership.claim(place)
    os.close(launcher)
    assert ownership.claim(place) == mine
    with pytest.raises(CheckpointNotWrittenError, match="the job of /jobs/mine on"):
        ownership.check_still_owned(place, theirs)
    ownership.check_still_owned(place, mine)
