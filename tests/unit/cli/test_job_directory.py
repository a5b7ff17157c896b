"""A job directory belongs to one launcher at a time."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hvd_elastic_keras import ctl
from hvd_elastic_keras.cli import job_directory
from hvd_elastic_keras.cli.job_directory import held, until_removed
from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.errors import ConfigurationError
from tests.unit.common.test_locks import held_by_a_stranger

HOLDER = """
import sys
from pathlib import Path
from hvd_elastic_keras.cli.job_directory import held
with held(Path(sys.argv[1])) as begin:
    begin()
    print("held", flush=True)
    sys.stdin.read()
"""


def test_another_launcher_is_refused_until_the_first_one_is_gone(tmp_path: Path) -> None:
    job_dir = tmp_path / "job"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(job_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            refused = pytest.raises(ConfigurationError, match=f"A job is running in {job_dir}")
            with refused, held(job_dir):
                pass
            (job_dir / files.MASTER).write_text("{")
            with refused, held(job_dir):
                pass
            assert (job_dir / files.LOGS).is_dir(), "who is refused takes nothing away"
        finally:
            holder.kill()  # as a launcher may end, without tidying up
            holder.wait(timeout=30)
    with held(job_dir) as begin:
        begin()


def test_a_stranger_who_holds_the_lock_is_named_with_what_to_do(tmp_path: Path) -> None:
    job_dir, lock = tmp_path / "job", tmp_path / "job" / files.LOCK
    job_dir.mkdir()
    lock.touch(mode=0o644)  # as earlier releases have made it
    with held_by_a_stranger(lock) as pid:
        with pytest.raises(ConfigurationError) as refused, held(job_dir):
            pass
        told = str(refused.value)
        assert f"A job is running in {job_dir}: process {pid} (" in told
        assert "has locked its job.lock" in told
        assert "If this is not the launcher of a job, end it, or remove job.lock" in told
        lock.unlink()
        with held(job_dir) as begin:
            begin()
    assert stat.S_IMODE(lock.stat().st_mode) == 0o600


def test_a_refused_job_leaves_no_new_directory_behind(tmp_path: Path) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    old.mkdir()
    for job_dir in (new, old):
        with pytest.raises(ConfigurationError), held(job_dir):
            raise ConfigurationError("There is no such model.")
    assert not new.exists()
    assert old.exists()


def test_what_cannot_be_written_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = pytest.raises(ConfigurationError, match=r"cannot be used: Not a directory")
    with refused, held(tmp_path / "file" / "job"):
        pass


def emptied(path: Path) -> None:
    for found in path.iterdir():
        found.unlink()


def replaced(path: Path) -> None:
    path.rename(f"{path}.old")
    path.mkdir()
    (path / files.EVENTS).touch()


def a_file_in_its_place(path: Path) -> None:
    shutil.rmtree(path)
    path.touch()


@pytest.mark.parametrize("remove", [shutil.rmtree, emptied, replaced, a_file_in_its_place])
def test_the_removal_of_a_directory_is_seen(
    tmp_path: Path, remove: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_directory, "LOOK_EVERY_S", 0.0)
    job_dir = tmp_path / "job"
    job_dir.mkdir()
    events = job_dir / files.EVENTS
    events.touch()

    async def run() -> None:
        seen = asyncio.create_task(until_removed(job_dir))
        for count in range(10):
            events.write_text("an entry" * count)
            (job_dir / f"file-{count}").touch()
            await asyncio.sleep(0)
            assert not seen.done()
        remove(job_dir)
        await asyncio.wait_for(seen, 60)

    asyncio.run(run())


def test_ctl_without_a_directory_takes_the_job_that_has_written_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for age, name in enumerate(("b", "a", "c")):
        log = tmp_path / "jobs" / name / files.EVENTS
        log.parent.mkdir(parents=True)
        log.touch()
        os.utime(log, (1000 - age, 1000 - age))
    (tmp_path / "jobs" / "no_job").mkdir()
    with pytest.raises(SystemExit, match="2"):
        ctl.main(["explain"])
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "job directory: jobs/b"
    assert told[1].startswith("error: There are no events in jobs/b/events.jsonl")


def test_ctl_says_that_there_is_no_job_it_could_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        ctl.main(["status"])
    assert "there is no job in ./jobs" in capsys.readouterr().err
