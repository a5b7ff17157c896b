"""Faults that a test lets happen inside of a worker, at an exact moment.

A test writes `Fault`s to a file. The model module `fault_model.py` reads the file in every worker
and lets them happen. A fault happens once in the whole job. It leaves a mark, so that a test can
prove that it happened.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import signal
import threading
import time
from pathlib import Path

import requests

from hvd_elastic_keras.common import master_session, messages, protocol
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.worker.elastic_session import ElasticSession

FILE = "HVD_ELASTIC_TEST_FAULTS"
SLOW = "HVD_ELASTIC_TEST_SLOW"
WRONG = "HVD_ELASTIC_TEST_WRONG"
WAIT_LIMIT_S = 90.0
POLL_S = 0.005
ANSWER_LIMIT_S = 15.0


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault: what happens, where and when.

    Attributes:
      point: "train", "evaluate" (inside the forward pass), "init" (assigned, before hvd.init()),
        "sync" (in the middle of the broadcast), "give" and "take" (while a large state is on its
        way from a holder to a joiner), "save" (while the results are written), "checkpoint" (before
        a callback saves weights), "between" (two trainings), "flush HOOK" (before the data that
        `TensorBoard` has written in a hook is flushed).
      rank: the rank in the round.
      step: for "train", "evaluate", "checkpoint" and "flush": the number of finished optimizer
        steps.
      round: for the other points; 0 is any round.
      action: a signal name; "wait" to hold the worker until the test opens the gate; or "keep_lock"
        to hold it in C with Python's lock (GIL), so that nothing else runs in it.
      size: the fault happens only in a round of this many workers; 0 is any.
    """

    name: str
    point: str
    rank: int
    step: int = -1
    round: int = 0
    action: str = "SIGKILL"
    size: int = 0

    def matches(self, point: str, rank: int, size: int, step: int, round_number: int) -> bool:
        """Returns whether the fault happens here."""
        return (
            self.point == point
            and self.rank == rank
            and self.step in (-1, step)
            and self.round in (0, round_number)
            and self.size in (0, size)
        )


class FaultPlan:
    """The faults of one job, in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def path(self) -> Path:
        """The file to name in the environment variable `FILE`."""
        return self._directory / "faults.json"

    def write(self, faults: list[Fault]) -> None:
        """Announces the faults to the workers, in place of those that were announced before."""
        self._directory.mkdir(parents=True, exist_ok=True)
        written = self.path.with_suffix(".new")
        written.write_text(json.dumps([dataclasses.asdict(f) for f in faults]))
        written.replace(self.path)
        for fault in faults:
            if fault.action == "keep_lock":
                os.mkfifo(self._directory / f"{fault.name}.open")

    def happened(self, name: str) -> bool:
        """Returns whether a fault has happened."""
        return (self._directory / f"{name}.happened").exists()

    def pid_of(self, name: str) -> int:
        """Returns the id of the process in which a fault has happened."""
        return int((self._directory / f"{name}.happened").read_text())

    def open_gate(self, name: str) -> None:
        """Releases a worker that is held by a fault with the action "wait" or "keep_lock"."""
        gate = self._directory / f"{name}.open"
        if gate.is_fifo():
            os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))  # an error if nobody waits
        else:
            gate.touch()


def seconds_per_micro_batch(worker_id: str) -> float:
    """Returns the seconds that a worker sleeps per micro-batch, from `SLOW`, such as "w1=0.02"."""
    slow, _, seconds = os.environ.get(SLOW, "").partition("=")
    return float(seconds) if slow == worker_id else 0.0


def reads_wrongly(worker_id: str) -> bool:
    """Returns whether this worker has to read wrong examples in the second epoch."""
    return os.environ.get(WRONG) == worker_id


def happen(point: str, rank: int, size: int, step: int = -1, round_number: int = 0) -> None:
    """Lets the planned faults of a point happen. Workers call this at each point."""
    file = os.environ.get(FILE)
    if not file:
        return
    for content in json.loads(Path(file).read_text()):
        fault = Fault(**content)
        if fault.matches(point, rank, size, step, round_number) and _first(file, fault):
            _act(Path(file).parent, fault)


def _first(file: str, fault: Fault) -> bool:
    """Marks a fault as happened; returns whether this was the first time.

    The mark appears with its content, never empty.
    """
    written = Path(file).parent / f"{fault.name}.{os.getpid()}.{threading.get_ident()}"
    written.write_text(str(os.getpid()))
    try:
        os.link(written, Path(file).parent / f"{fault.name}.happened")
    except FileExistsError:
        return False
    finally:
        written.unlink()
    return True


def _act(directory: Path, fault: Fault) -> None:
    if fault.action == "keep_lock":
        ctypes.PyDLL(None).open(os.fsencode(directory / f"{fault.name}.open"), os.O_RDONLY)
        return
    if fault.action != "wait":
        os.kill(os.getpid(), signal.Signals[fault.action])
        return
    deadline = time.monotonic() + WAIT_LIMIT_S
    while not (directory / f"{fault.name}.open").exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody opened the gate {fault.name}")
        time.sleep(POLL_S)
    _hear_of_changes()


def _hear_of_changes() -> None:
    """Waits until this worker knows what the master knew when the gate was opened.

    After that, this worker has been told of each change that a test has seen in the job's events.
    """
    session, environment = ElasticSession.current, env.worker_environment()
    if session is None or environment is None:
        return
    query = f"updates?worker_id={environment.worker_id}&version=0"
    url = master_session.url_of(environment.master, environment.fingerprint, query)
    with master_session.session_of(environment.token, environment.fingerprint) as http:
        try:
            reply = http.get(url, timeout=ANSWER_LIMIT_S)
            reply.raise_for_status()
        except requests.RequestException:
            return  # there is no master at present, or it had no update yet
    newest = messages.decode(reply.content, protocol.WorkerUpdate)
    deadline = time.monotonic() + ANSWER_LIMIT_S
    while session._update.version < newest.version and time.monotonic() < deadline:
        time.sleep(POLL_S)
    # A worker has imported TensorFlow, but a test may not have.
    from hvd_elastic_keras.step.world import world_of_process

    # Another thread may only be about to pass on to the running step what the session knows.
    world_of_process().refresh()
