"""A silent worker whose process runs is not dead: C code may keep Python's lock."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from hvd_elastic_keras.common import protocol
from hvd_elastic_keras.launchers.base import LOCALHOST
from hvd_elastic_keras.launchers.signs_of_life import SignsOfLife
from hvd_elastic_keras.master.life_watch import LifeWatch
from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.state import State, Worker, WorkerPhase
from hvd_elastic_keras.settings.job_config import JobConfig
from tests.unit.master.membership_driver import Job

WAKES_UP = "import time; print(flush=True)\nwhile True: time.sleep(0.001)"


def hold(job: Job, seconds: float, *, others: str = "", alive: bool = True) -> None:
    """Keeps w1 silent while the others wait in their collective.

    With `alive`, the process of w1 is reported to run.
    """
    end = job.now + seconds
    while job.now < end:
        job.heartbeat(*others.split(), step=10, in_collective=True)
        if alive:
            job.send(protocol.Alive(worker_id="w1"))
        job.wait(min(1.0, end - job.now))


def told(job: Job) -> list[str]:
    return [line for line in job.said if "has sent no heartbeat for" in line]


def test_who_is_silent_though_its_process_runs_is_told_once_and_replaced_in_the_end(
    three: Job,
) -> None:
    three.heartbeat("w1", step=10)
    hold(three, 15, others="w0 w2")
    assert told(three) == []
    hold(three, 2, others="w0 w2")
    (line,) = told(three)
    assert line.startswith("w1 has sent no heartbeat for 16 s, but its process runs: code in C")
    assert "logs/w1.log shows where. It is replaced after 1800 s" in line
    hold(three, 1780, others="w0 w2")
    assert (three.killed, len(told(three))) == ([], 1)
    hold(three, 10, others="w0 w2")
    assert three.killed == ["w1"]


def test_the_members_that_wait_for_it_are_not_taken_for_those_who_hold_up(three: Job) -> None:
    three.heartbeat("w1", step=10, in_collective=True)  # a moment before it began a callback
    hold(three, 100, others="w0 w2")
    (line,) = [line for line in three.said if "for which the others wait" in line]
    assert line.startswith("w1 has not come to step 10")


def test_all_may_be_silent_together_and_go_on(three: Job) -> None:
    three.heartbeat("w0", "w1", "w2", step=10, in_collective=True)
    for _ in range(100):
        for worker_id in three.workers:
            three.send(protocol.Alive(worker_id=worker_id))
        three.wait(1.0)
    assert (three.killed, len(told(three))) == ([], 3)
    three.heartbeat("w0", "w1", "w2", step=11)
    three.wait(10.0)
    assert three.killed == []
    assert [w.told_silent for w in three.state.workers.values()] == [False] * 3


def test_who_stops_together_with_its_process_is_found_as_soon_as_ever(three: Job) -> None:
    hold(three, 1, others="w0 w2")
    hold(three, 15, others="w0 w2", alive=False)
    assert three.killed == ["w1"]
    assert three.last("worker_exited")["cause"].startswith("evicted: no heartbeat for 16 s")


def test_who_stops_while_it_is_silent_is_found_before_its_patience_ends(three: Job) -> None:
    hold(three, 100, others="w0 w2")
    hold(three, 8, others="w0 w2", alive=False)
    assert three.killed == ["w1"]


def test_a_start_in_which_no_python_code_runs_has_the_limit_of_a_start() -> None:
    job = Job(2, stall_timeout_s=60.0, start_up_timeout_s=600.0)
    job.heartbeat("w0", "w1", phase="importing")
    hold(job, 500, others="w0")
    assert job.killed == []
    hold(job, 110, others="w0")
    assert "w1" in job.killed


def test_who_has_come_by_itself_and_runs_may_take_long_to_its_first_word() -> None:
    job = Job(1)
    job.send(act.Registered("w1", "a"))
    for _ in range(200):
        job.send(protocol.Alive(worker_id="w1"))
        job.wait(1.0)
    assert job.killed == []
    job.wait(10.0)
    assert job.killed == ["w1"]


# --- real processes ----------------------------------------------------------------------


@pytest.fixture
def running() -> Iterator[subprocess.Popen[str]]:
    """Yields a process that wakes up again and again."""
    process = subprocess.Popen([sys.executable, "-c", WAKES_UP], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def test_a_process_that_runs_shows_it_and_one_that_is_stopped_or_gone_does_not(
    running: subprocess.Popen[str],
) -> None:
    signs = SignsOfLife(running.pid)
    assert not signs.since_last_look(), "nothing is known of the time before"
    while not signs.since_last_look():
        pass
    running.send_signal(signal.SIGSTOP)
    signs = SignsOfLife(running.pid)
    assert [signs.since_last_look() for _ in range(3)] == [False] * 3
    running.send_signal(signal.SIGCONT)
    while not signs.since_last_look():
        pass
    running.kill()
    running.wait()
    assert not signs.since_last_look()


def test_the_processes_of_quiet_workers_of_this_machine_are_looked_at(
    running: subprocess.Popen[str],
) -> None:
    heard: list[protocol.Alive] = []
    watch = LifeWatch(JobConfig(heartbeat_timeout_s=15.0), heard.append)

    def worker(worker_id: str, host: str = LOCALHOST, at: float = 90.0) -> Worker:
        return Worker(
            worker_id,
            launched_at=0.0,
            host=host,
            pid=running.pid,
            phase=WorkerPhase.MEMBER,
            last_heartbeat=at,
        )

    workers = {w.worker_id: w for w in (worker("w0"), worker("w1", at=99.0), worker("w2", "a"))}
    state = State(workers=workers)
    watch.look(state, 100.0)
    now = 100.0
    while not heard:
        now += 1.0
        watch.look(state, now)
        state = State(workers={**workers, "w1": worker("w1", at=now)})
    assert heard == [protocol.Alive(worker_id="w0")]
    watch.look(state, now + 0.5)
    assert len(heard) == 1, "not more often than it matters"
