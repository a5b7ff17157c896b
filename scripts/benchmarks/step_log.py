"""Runs jobs whose workers note each step, finds their workers, and reads the notes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

ROOT = Path(__file__).resolve().parents[2]
STEP_LOG = "BENCH_STEP_LOG"
LIMIT_S = 180.0
POLL_S = 0.005
SETTLE_STEPS = 50


class Step(NamedTuple):
    """One finished step of one worker.

    Attributes:
      time_s: when it was finished, by the machine's monotonic clock.
      workers: the number of workers that took it.
      number: the number of the step.
    """

    time_s: float
    workers: int
    number: int


def steps(directory: Path) -> list[Step]:
    """Returns all noted steps of all workers, in order of time."""
    found = []
    for file in directory.iterdir():
        for line in file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                moment, workers, number = line.split()
                found.append(Step(float(moment), int(workers), int(number)))
    return sorted(found)


def wait(look: Callable[[], Any], what: str) -> Any:
    """Polls until `look` finds something.

    Raises:
      TimeoutError: it has found nothing for `LIMIT_S` seconds.
    """
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(POLL_S)
    raise TimeoutError(f"no {what} within {LIMIT_S:.0f} s")


def settled(directory: Path, workers: int, after: float) -> Callable[[], bool]:
    """Returns a function that checks for some dozen steps with this many workers."""
    return lambda: (
        sum(s.time_s > after and s.workers == workers for s in steps(directory)) > SETTLE_STEPS
    )


def start(
    command: Sequence[str], log_dir: Path, output: Path, variables: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Starts a job.

    Args:
      log_dir: directory of the notes.
      output: file to which the output of the job is appended.
      variables: further environment variables.
    """
    path = os.pathsep.join([*filter(None, [(variables or {}).get("PYTHONPATH")]), str(ROOT)])
    environment = {**os.environ, **(variables or {}), STEP_LOG: str(log_dir), "PYTHONPATH": path}
    with output.open("ab") as stream:
        return subprocess.Popen(command, env=environment, stdout=stream, stderr=subprocess.STDOUT)


@contextmanager
def running(
    command: Sequence[str], log_dir: Path, output: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Does the same; at the end of the block, the job is ended with all of its processes."""
    log_dir.mkdir()
    process = start(command, log_dir, output)
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a job with all of its processes."""
    children = []
    if process.poll() is None:
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for child in children:
        if child.is_running():
            child.kill()


def members(job_dir: Path) -> list[int]:
    """Returns the process ids of the workers of a job of this project, by rank."""
    pids: dict[str, int] = {}
    latest: list[int] = []
    for line in (job_dir / "events.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry["event"] == "worker_started":
            pids[entry["worker_id"]] = entry["pid"]
        elif entry["event"] == "round_running":
            latest = [pids[m] for m in entry["members"]]
    return latest


def workers_of(driver: int, log_dir: Path) -> list[int]:
    """Returns the process ids of the workers of a `horovodrun` that have begun to note steps."""
    known = {file.name for file in log_dir.iterdir()}
    return [p.pid for p in psutil.Process(driver).children(recursive=True) if str(p.pid) in known]
