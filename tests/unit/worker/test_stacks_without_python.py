"""Where no Python code can run, the stacks are written all the same."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from hvd_elastic_keras.worker import standstill

LIMIT_S = 60.0
KEEPS_THE_LOCK = """
import ctypes, logging, sys, threading
from hvd_elastic_keras.worker import standstill

logging.basicConfig()
standstill.SILENT_S, standstill.LOOK_S = 0.2, 0.02
stopped = threading.Event()
watch = threading.Thread(target=standstill.watch_for_silence, args=(stopped,))
watch.start()

def slow_storage():
    ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1)

slow_storage()
while sys.stdin.readline() != "end\\n":
    pass
stopped.set()
watch.join()
"""


def test_the_line_that_keeps_pythons_lock_is_written_while_it_does() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KEEPS_THE_LOCK],
        cwd=Path(__file__).parents[3],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin
    assert process.stderr
    limit = threading.Timer(LIMIT_S, process.kill)
    limit.start()
    try:
        while line := process.stderr.readline():
            if "in slow_storage" in line:
                break
        assert line, "it was written before anybody let the process go on"
        process.stdin.write("x\n")
        process.stdin.flush()
        while line := process.stderr.readline():
            if "no Python code ran for" in line:
                break
        assert line
        _, rest = process.communicate("end\n", timeout=LIMIT_S)
        assert process.returncode == 0, rest
    finally:
        limit.cancel()
        process.kill()


class Stopped(threading.Event):
    """Lets time pass: each wait takes as long as is planned, and the last one ends the watch."""

    def __init__(self, *waits: float) -> None:
        super().__init__()
        self._waits = list(waits)
        self.now = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        if not self._waits:
            return True
        self.now += self._waits.pop(0)
        return False


def test_the_timer_never_ends_as_long_as_python_code_runs() -> None:
    begun: list[float] = []
    ended: list[float] = []
    stopped = Stopped(*[1.0] * 30)
    standstill.watch_for_silence(
        stopped, begun.append, lambda: ended.append(stopped.now), lambda: stopped.now
    )
    assert begun == [standstill.SILENT_S] * 31
    assert ended == [30.0]


def test_code_that_keeps_the_lock_again_and_again_does_not_fill_the_log() -> None:
    ended: list[float] = []
    stopped = Stopped(*[1.0, 20.0] * 10)
    standstill.watch_for_silence(
        stopped, lambda _: None, lambda: ended.append(stopped.now), lambda: stopped.now
    )
    assert ended == [21.0 * standstill.MOST_WRITTEN]
