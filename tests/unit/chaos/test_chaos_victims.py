"""Only processes of the job are ever signalled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from hvd_elastic_keras.chaos import victims
from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.control import WorkerStatus
from hvd_elastic_keras.settings import env
from tests.unit.chaos.test_chaos_plan import worker

WAITS = "import sys; print('here', flush=True); sys.stdin.read()"


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has the environment of worker w1, and the events of the job open."""
    with (
        (tmp_path / files.EVENTS).open("a") as held,
        subprocess.Popen(
            [sys.executable, "-c", WAITS],
            env={**os.environ, env.JOB_DIR: str(tmp_path), env.WORKER_ID: "w1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[held.fileno()],
            text=True,
        ) as found,
    ):
        assert found.stdout is not None
        found.stdout.readline()
        yield found
        found.kill()


def status(process: subprocess.Popen[str], name: str = "w1") -> WorkerStatus:
    return msgspec.structs.replace(worker(name, 0), pid=process.pid)


def test_a_worker_of_the_job_is_found_and_killed(
    process: subprocess.Popen[str], tmp_path: Path
) -> None:
    victim = victims.worker_of(tmp_path, status(process))
    assert isinstance(victim, victims.Victim)
    assert not victim.is_gone()
    victim.send(signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    assert victim.is_gone()
    victim.send(signal.SIGKILL)  # nobody else is hit
    victim.close()


def test_a_process_of_another_worker_or_job_is_left_alone(
    process: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert "not belong (any more) to w2" in str(victims.worker_of(tmp_path, status(process, "w2")))
    assert "w1" in str(victims.worker_of(tmp_path / "other", status(process)))
    process.kill()
    process.wait(60)
    assert "was gone" in str(victims.worker_of(tmp_path, status(process)))


def test_the_launcher_is_known_by_the_events_that_it_writes(
    process: subprocess.Popen[str], tmp_path: Path
) -> None:
    found = victims.launcher_of(tmp_path, process.pid)
    assert isinstance(found, victims.Victim)
    found.close()
    assert "belong (any more) to the launcher" in str(
        victims.launcher_of(tmp_path / "other", process.pid)
    )


def state_of(process: subprocess.Popen[str]) -> str:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2][0]


@pytest.mark.parametrize("stopped_share", [0.9, 1.0])
def test_who_is_held_back_runs_on_at_the_end(
    stopped_share: float, process: subprocess.Popen[str], tmp_path: Path
) -> None:
    victim = victims.worker_of(tmp_path, status(process))
    assert isinstance(victim, victims.Victim)
    hold = victims.hold(victim, 60.0, stopped_share)
    while state_of(process) != "T":
        pass
    assert not hold.is_over()
    hold.end()
    assert hold.is_over()
    assert process.communicate("", timeout=60)[0] == ""
    assert process.returncode == 0
    victim.close()
