"""The process of a worker that has joined: its output, its signals and its end."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

import requests

from hvd_elastic_keras.common import control, messages, protocol
from hvd_elastic_keras.common.master_session import session_of, url_of
from hvd_elastic_keras.launchers import keeper
from hvd_elastic_keras.launchers.signs_of_life import SignsOfLife
from hvd_elastic_keras.settings import env

TAIL_LINES = 200
LONGEST_LINE = 2**16
"""Most bytes of a line that are read at once."""
ASK_AGAIN_S = 1.0
READER_PATIENCE_S = 5.0
END_WITHIN_S = 10.0
"""Seconds in which a worker that the job has given up may find that out by itself."""
STOP_WITHIN_S = 60.0
"""Seconds that a worker may take to end when the job stops, including a checkpoint."""


class Reader:
    """The reader of this process's output. It may be gone, or behind a broken connection."""

    def __init__(self, descriptor: int, patience_s: float = READER_PATIENCE_S) -> None:
        self._descriptor = descriptor
        self._patience_s = self._patient_s = patience_s

    def write(self, data: bytes) -> bool:
        """Hands data on; returns whether the reader has taken all of it.

        A reader that hangs is waited for only once.
        """
        with contextlib.suppress(OSError):
            while data and select.select([], [self._descriptor], [], self._patience_s)[1]:
                # A pipe that is ready takes PIPE_BUF bytes without delay.
                data = data[os.write(self._descriptor, data[: select.PIPE_BUF]) :]
        self._patience_s = 0.0 if data else self._patient_s
        return not data


class JoinedProcess:
    """Runs workers, one after the other, in `directory`.

    SIGTERM and SIGINT ask the worker to leave after the current step; the second one ends it.
    The output of a worker is handed on and logged. A launcher that reads the output has a log of
    its own; then only output that could not be handed on is logged here.
    """

    def __init__(self, directory: Path, *, read_by_launcher: bool = False) -> None:
        self._directory = directory
        self._read_by_launcher = read_by_launcher
        self._process: subprocess.Popen[bytes] | None = None
        self._tail: deque[bytes] = deque(maxlen=TAIL_LINES)
        self._signals = 0
        self.stopped = ""
        """Reason why the job has stopped; empty if it has not stopped."""

    @property
    def asked_to_end(self) -> bool:
        """Whether a signal has asked the worker to end."""
        return self._signals > 0

    @property
    def log_tail(self) -> str:
        """The last lines that the worker has printed."""
        return b"".join(self._tail).decode(errors="replace")

    def run(
        self,
        command: Sequence[str],
        environment: dict[str, str],
        log: Path,
        endpoint: control.Endpoint,
    ) -> int:
        """Runs a worker to its end; returns its exit code, as `subprocess` gives it."""
        self._tail.clear()
        scratch = tempfile.mkdtemp(prefix=f"{env.SCRATCH_PREFIX}{log.stem}-")
        keeper.become_parent_of_orphans()
        others = keeper.children()
        with self._signals_handed_on(), contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, scratch, ignore_errors=True)
            process = self._process = subprocess.Popen(
                command,
                cwd=self._directory,
                env={**environment, "TMPDIR": scratch},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            if self._signals:
                process.terminate()
            file = stack.enter_context(log.open("ab"))
            pumps = [
                threading.Thread(target=self._pump, args=(source, Reader(sink), file), daemon=True)
                for source, sink in ((process.stdout, 1), (process.stderr, 2))
            ]
            for thread in pumps:
                thread.start()
            gone = threading.Event()
            watch = (log.stem, endpoint, process, gone)
            for work in (self._end_if_not_wanted, _tell_that_it_runs):
                threading.Thread(target=work, args=watch, daemon=True).start()
            code = process.wait()
            gone.set()
            _kill_group(process)
            keeper.end_children(spared=others)
            for thread in pumps:
                thread.join(END_WITHIN_S)
            return code

    def _pump(self, source: IO[bytes], reader: Reader, log: IO[bytes]) -> None:
        while line := source.readline(LONGEST_LINE):  # a longer line comes in parts
            self._tail.append(line)
            if reader.write(line) and self._read_by_launcher:
                continue
            with contextlib.suppress(OSError):  # a full disk must not stop the worker in `print`
                log.write(line)
                log.flush()

    @contextlib.contextmanager
    def _signals_handed_on(self) -> Iterator[None]:
        handed = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, self._hand_on) for number in handed}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hand_on(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        process = self._process
        if process is None or process.poll() is not None:
            return
        if self._signals == 1:
            process.terminate()
        else:
            _kill_group(process)

    def _end_if_not_wanted(
        self,
        worker_id: str,
        endpoint: control.Endpoint,
        process: subprocess.Popen[bytes],
        gone: threading.Event,
    ) -> None:
        """Ends a worker that the job does not want any more, if the worker does not end by itself.

        A worker that still starts, hangs or is frozen does not hear from the master.
        """
        session = session_of(endpoint.token, endpoint.fingerprint)
        version = 0
        while not gone.is_set():
            query = f"updates?worker_id={worker_id}&version={version}"
            url = url_of(endpoint.address, endpoint.fingerprint, query)
            try:
                answer = session.get(url, timeout=2 * protocol.LONG_POLL_S)
                answer.raise_for_status()
                update = messages.decode(answer.content, protocol.WorkerUpdate)
            except (requests.RequestException, messages.ProtocolError):
                gone.wait(ASK_AGAIN_S)
                continue
            version, self.stopped = update.version, update.stop
            if update.stop:
                process.terminate()
                _kill_late(process, gone, STOP_WITHIN_S)
            elif update.leave == protocol.NO_WORKER:
                _kill_late(process, gone, END_WITHIN_S)


def _tell_that_it_runs(
    worker_id: str,
    endpoint: control.Endpoint,
    process: subprocess.Popen[bytes],
    gone: threading.Event,
) -> None:
    """Tells the master that the worker's process runs.

    The worker's own threads cannot do so while code in C holds Python's lock (GIL).
    """
    session = session_of(endpoint.token, endpoint.fingerprint)
    url = url_of(endpoint.address, endpoint.fingerprint, "events")
    told = messages.encode(protocol.Alive(worker_id=worker_id))
    signs = SignsOfLife(process.pid)
    while not gone.wait(protocol.ALIVE_INTERVAL_S):
        keeper.forget_ended_orphans(process.pid)
        if signs.since_last_look():
            with contextlib.suppress(requests.RequestException):  # the next message is newer
                session.post(url, data=told, timeout=protocol.LONG_POLL_S)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kills the process and all processes of its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _kill_late(process: subprocess.Popen[bytes], gone: threading.Event, grace_s: float) -> None:
    if not gone.wait(grace_s):
        _kill_group(process)
        gone.wait(grace_s)
