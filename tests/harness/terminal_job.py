"""A job on a terminal, and the content of its screen."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import pyte

from tests.harness.job import LIMIT_S, POLL_S, Job

INTERRUPT = b"\x03"
"""The byte that Ctrl-C sends."""
STOP, GO_ON = b"\x13", b"\x11"
"""The bytes that Ctrl-S and Ctrl-Q send. Between them, the terminal takes no output."""
HISTORY = 1000
SIZE = ("COLUMNS", "LINES")
"""Environment variables that have priority over the terminal's size."""


class TerminalJob(Job):
    """A job whose launcher has a terminal of its own, of 80 columns and 24 lines."""

    columns = 80
    lines = 24
    variables: ClassVar = {"TERM": "xterm-256color"}

    def environment(self) -> dict[str, str]:
        """Returns the variables for this terminal. pytest-xdist sets the size of another one."""
        inherited = {n: v for n, v in super().environment().items() if n not in SIZE}
        return {**inherited, **self.variables}

    def start_launcher(self, *more_flags: str) -> None:
        """Runs the command as the foreground process of a new terminal."""
        self._temporary.mkdir(exist_ok=True)
        self._lock = threading.Lock()
        self._seen = pyte.HistoryScreen(self.columns, self.lines, history=HISTORY, ratio=0.5)
        self._stream = pyte.ByteStream(self._seen)
        self._terminal, other_end = pty.openpty()
        self._wakes, self._wake = os.pipe()
        self._set_size()
        self._process = subprocess.Popen(
            self.command_line(*more_flags),
            env=self.environment(),
            stdin=other_end,
            stdout=other_end,
            stderr=other_end,
            start_new_session=True,
            # Between fork and exec, only this one call is made.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
        )
        os.close(other_end)
        self._reader = threading.Thread(target=self._read_all, daemon=True)
        self._reader.start()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.hang_up()
        self._reader.join(LIMIT_S)
        for end in (self._wakes, self._wake):
            os.close(end)

    def hang_up(self) -> None:
        """Closes the window: programs that run in the terminal get SIGHUP."""
        os.write(self._wake, b"!")
        self._reader.join(LIMIT_S)
        with contextlib.suppress(OSError):  # it was closed before
            os.close(self._terminal)
        self._terminal = -1

    def resize(self, columns: int) -> None:
        """Sets the window's width."""
        self.columns = columns
        with self._lock:
            self._seen.resize(self.lines, columns)
            self._set_size()

    def press(self, keys: bytes) -> None:
        """Types something."""
        os.write(self._terminal, keys)

    @property
    def window(self) -> list[str]:
        """The lines on the screen, from the top to the last one that is not empty."""
        with self._lock:
            lines = [line.rstrip() for line in self._seen.display]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    @property
    def scrolled(self) -> list[str]:
        """The lines that have scrolled off the top of the screen."""
        with self._lock:
            return [_text(line, self._seen.columns) for line in self._seen.history.top]

    @property
    def has_cursor(self) -> bool:
        """Whether the cursor is visible, at the beginning of a line."""
        with self._lock:
            return not self._seen.cursor.hidden and self._seen.cursor.x == 0

    def wait_for_line(self, *parts: str) -> list[str]:
        """Waits for a line on the screen that has all of these parts; returns the screen."""
        return self.wait_for_lines(parts)

    def wait_for_lines(self, *lines: Sequence[str]) -> list[str]:
        """Waits for consecutive lines, each with all of its parts.

        The screen may be half drawn: wait at once for all lines that belong together.

        Returns:
          The screen up to the last of these lines.
        """
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            window = self.window
            for end in range(len(lines), len(window) + 1):
                below = zip(window[end - len(lines) : end], lines, strict=True)
                if all(part in line for line, parts in below for part in parts):
                    return window[:end]
            time.sleep(POLL_S)
        raise AssertionError(f"no lines with {lines}:\n" + "\n".join(self.window))

    def wait_for_end(self) -> int:
        """Waits until the launcher has ended and its output is read; returns its exit code."""
        code = self.process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        return code

    def _set_size(self) -> None:
        size = struct.pack("HHHH", self.lines, self.columns, 0, 0)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)

    def _read_all(self) -> None:
        # Reading from a terminal without processes fails.
        with contextlib.suppress(OSError), self._output.open("ab", buffering=0) as output:
            while self._wakes not in select.select([self._terminal, self._wakes], [], [])[0]:
                if not (data := os.read(self._terminal, 2**16)):
                    break
                output.write(data)
                with self._lock:
                    self._stream.feed(data)


def _text(line: Any, columns: int) -> str:
    return "".join(line[n].data for n in range(columns)).rstrip()
