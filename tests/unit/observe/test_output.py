"""Output that nobody reads, or that finds no room: whoever prints neither waits nor fails."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import pytest
from absl import logging as absl_logging

from hvd_elastic_keras.observe import output
from hvd_elastic_keras.observe.console import Console
from hvd_elastic_keras.observe.output import Outlet

LIMIT_S = 60.0
PIPE_BYTES = 4096
"""The least that a pipe holds."""


@contextlib.contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    """Both ends of a pipe that is full soon."""
    source, sink = os.pipe()
    fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    try:
        yield source, sink
    finally:
        for end in (source, sink):
            with contextlib.suppress(OSError):
                os.close(end)


def read(source: int, size: int) -> bytes:
    """So many bytes, or fewer at the end of the file."""
    data = b""
    while len(data) < size and (more := os.read(source, size - len(data))):
        data += more
    return data


def wait_until(condition: Callable[[], bool]) -> None:
    reached = threading.Event()
    deadline = threading.Timer(LIMIT_S, reached.set)
    deadline.start()
    while not condition():
        assert not reached.wait(0.01), "not within the limit"
    deadline.cancel()


class Disk:
    """That of an open file; has no room as long as it is told so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, descriptor: int) -> None:
        self.error: int | None = None
        self.refused = threading.Event()
        self._descriptor = descriptor
        self._write = os.write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, descriptor: int, data: bytes) -> int:
        if self.error is not None and descriptor == self._descriptor:
            self.refused.set()
            raise OSError(self.error, os.strerror(self.error))
        return self._write(descriptor, data)


def test_lines_for_a_reader_who_pauses_come_in_order_when_he_goes_on() -> None:
    lines = [f"line {n}\n".encode() for n in range(5000)]
    with pipe() as (source, sink):
        outlet = Outlet(sink)
        for line in lines:
            outlet.put(line)  # none of them waits
        whole = b"".join(lines)
        assert read(source, len(whole)) == whole
        outlet.end()
        assert not outlet.behind


def test_a_pipe_that_makes_nobody_wait_loses_nothing(tmp_path: Path) -> None:
    with pipe() as (source, sink):
        os.set_blocking(sink, False)
        outlet = Outlet(sink)
        outlet.instead = tmp_path / "launcher.log"
        whole = b"x" * PIPE_BYTES * 4 + b"\n"
        outlet.put(whole)
        said: list[bytes] = []
        reader = threading.Thread(target=lambda: said.append(read(source, len(whole))))
        reader.start()
        outlet.end()
        reader.join(LIMIT_S)
        assert said == [whole]
        assert not outlet.instead.exists()


def test_lines_that_wait_are_written_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    write = os.write

    with pipe() as (source, sink):

        def noted(descriptor: int, data: bytes) -> int:
            if descriptor == sink:
                sizes.append(len(data))
            return write(descriptor, data)

        monkeypatch.setattr(os, "write", noted)
        outlet = Outlet(sink)
        first = b"x" * PIPE_BYTES * 2 + b"\n"
        outlet.put(first)
        read(source, 1)  # it is being written, and cannot be to the end
        for number in range(5000):
            outlet.put(b"line %04d\n" % number)
        rest = len(first) - 1 + 5000 * len(b"line 0000\n")
        assert len(read(source, rest)) == rest
        outlet.end()
        assert len(sizes) < 10


def test_of_too_much_the_oldest_is_left_out_and_a_line_says_so() -> None:
    with pipe() as (source, sink):
        outlet = Outlet(sink, most_bytes=1000)
        outlet.put(b"x" * PIPE_BYTES * 2 + b"\n")
        read(source, 1)  # it is being written
        for number in range(1000):
            outlet.put(b"line %03d\n" % number)
        os.set_blocking(source, True)
        reader: list[bytes] = []
        thread = threading.Thread(target=lambda: reader.append(read(source, 2**20)))
        thread.start()
        outlet.end()
        os.close(sink)
        thread.join(LIMIT_S)
        _, missing, *rest = reader[0].decode().splitlines()
        assert rest == [f"line {n:03d}" for n in range(1000 - len(rest), 1000)]
        assert missing == (
            f"[elastic] warning: lines are missing here ({1000 - len(rest)}): they could not be "
            "written in time"
        )


def test_what_finds_no_room_is_written_when_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        disk, outlet = Disk(monkeypatch, file.fileno()), Outlet(file.fileno())
        disk.error = errno.ENOSPC
        outlet.put(b"first\n")
        assert disk.refused.wait(LIMIT_S)
        wait_until(lambda: "No space left" in outlet.trouble)
        outlet.put(b"second\n")
        disk.error = None
        outlet.put(b"third\n")
        outlet.end()
        assert outlet.trouble == ""
    assert path.read_text() == "first\nsecond\nthird\n"


def test_at_the_end_a_full_disk_is_not_waited_for_and_the_other_file_has_it(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        outlet = Outlet(full.fileno())
        outlet.instead = tmp_path / "launcher.log"
        outlet.put(b"the end\n")
        outlet.end()
    head, line = outlet.instead.read_text().splitlines()
    assert line == "the end"
    assert head == f"{output.HEAD} (No space left on device)"


def test_at_the_end_a_reader_who_takes_nothing_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "PAUSED_AFTER_S", 0.05)
    with pipe() as (source, sink):
        outlet = Outlet(sink, most_bytes=100)
        outlet.instead = tmp_path / "launcher.log"
        outlet.put(b"x" * PIPE_BYTES * 2 + b"\n")
        read(source, 1)  # it is being written
        for data in (b"y" * 100, b"the end"):
            outlet.put(data + b"\n")
        wait_until(lambda: outlet.trouble != "")
        assert "nobody reads the launcher's output at present" in outlet.trouble
        outlet.end()
        *_, missing, line = outlet.instead.read_text().splitlines()
        assert "warning: lines are missing here (1)" in missing
        assert line == "the end"


@pytest.mark.parametrize("is_terminal", [False, True])
def test_when_the_reader_is_gone_all_goes_on_in_the_other_file(
    tmp_path: Path, is_terminal: bool
) -> None:
    source, sink = pty.openpty() if is_terminal else os.pipe()
    outlet = Outlet(sink)
    outlet.put(b"before\n")
    read(source, len(b"before\n"))
    os.close(source)
    outlet.put(b"nobody can be told: there is no other file yet\n")
    wait_until(lambda: not outlet.behind)
    outlet.instead = tmp_path / "launcher.log"
    outlet.put(b"\x1b[1A\x1b[2K\x1b[33mafter\x1b[0m\n")
    outlet.end()
    outlet.put(b"\x1b[2K\x1b[1mthe end\x1b[0m\n")  # whose drawing began before
    outlet.end()
    assert outlet.moved
    assert outlet.instead.read_text().splitlines()[1:] == ["after", "the end"]
    assert str(outlet.instead) in outlet.trouble
    os.close(sink)


@contextlib.contextmanager
def standard_streams(
    monkeypatch: pytest.MonkeyPatch, stdout: TextIO, stderr: TextIO
) -> Iterator[None]:
    with monkeypatch.context() as changed:
        changed.setattr(sys, "stdout", stdout)
        changed.setattr(sys, "stderr", stderr)
        yield


def test_what_is_printed_told_and_logged_goes_to_one_file_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    handler = absl_logging.get_absl_handler().python_handler
    before = handler.stream
    with path.open("w") as out, path.open("a") as err, standard_streams(monkeypatch, out, err):
        handler.setStream(err)
        with output.best_effort():
            for number in range(3):
                print(f"out {number}")
                Console().line(f"line {number} → ä")
                print(f"err {number}", file=sys.stderr)
            print("a log", file=handler.stream)
        assert handler.stream is err
    handler.setStream(before)
    lines = path.read_text().splitlines()
    expected = [w for n in range(3) for w in (f"out {n}", f"[elastic] line {n} → ä", f"err {n}")]
    assert lines == [*expected, "a log"]


def test_a_stream_that_knows_fewer_characters_gets_others_in_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    with (
        path.open("w", encoding="ascii") as out,
        standard_streams(monkeypatch, out, out),
        output.best_effort(),
    ):
        print("3 → 2 workers")
    assert path.read_text() == "3 ? 2 workers\n"


def test_an_interrupted_end_waits_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pipe() as (source, sink):
        outlet = Outlet(sink)
        outlet.instead = tmp_path / "launcher.log"
        outlet.put(b"x" * PIPE_BYTES * 2 + b"\n")
        read(source, 1)  # it is being written
        outlet.put(b"the end\n")

        wait = threading.Condition.wait

        def interrupted(self: threading.Condition, timeout: float | None = None) -> bool:
            if threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt
            return wait(self, timeout)

        with monkeypatch.context() as changed:
            changed.setattr(threading.Condition, "wait", interrupted)
            outlet.end()
        assert outlet.instead.read_text().endswith("x\nthe end\n")


PRINTS = """
import os, sys
from hvd_elastic_keras.observe import output
output.open_closed_streams()
with output.best_effort():
    later = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
    print("nobody hears this")
    print("nor this", file=sys.stderr)
    os.write(1, b"nor this")
"""


def test_what_goes_to_closed_streams_does_not_go_to_a_file_that_is_opened_later(
    tmp_path: Path,
) -> None:
    path = tmp_path / "later"
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    subprocess.run([*closed, sys.executable, "-c", PRINTS, str(path)], check=True, timeout=LIMIT_S)
    assert path.read_text() == ""


def test_a_process_with_closed_streams_prints_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: object = None
    with monkeypatch.context() as changed:
        changed.setattr(sys, "stdout", nothing)
        changed.setattr(sys, "stderr", nothing)
        with output.best_effort():
            print("nobody hears this")
