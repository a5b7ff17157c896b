"""A job on a terminal, and what is seen there."""

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
"""What Ctrl-C sends."""
STOP, GO_ON = b"\x13", b"\x11"
"""What Ctrl-S and Ctrl-Q send: no output meanwhile."""
HISTORY = 1000
SIZE = ("COLUMNS", "LINES")
"""Variables that count more than the size of the terminal."""


class TerminalJob(Job):
    """A job whose launcher has a terminal of its own, of 80 columns and 24 lines."""

    columns = 80
    lines = 24
    variables: ClassVar = {"TERM": "xterm-256color"}

    def environment(self) -> dict[str, str]:
        """As on this terminal: pytest-xdist gives its processes the size of another one."""
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
            # Neither it nor Python does more between fork and exec.
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
        """Closes the window: whoever runs in the terminal gets SIGHUP."""
        os.write(self._wake, b"!")
        self._reader.join(LIMIT_S)
        with contextlib.suppress(OSError):  # it was closed before
            os.close(self._terminal)
        self._terminal = -1

    def resize(self, columns: int) -> None:
        """Makes the window so wide."""
        self.columns = columns
        with self._lock:
            self._seen.resize(self.lines, columns)
            self._set_size()

    def press(self, keys: bytes) -> None:
        """Types something."""
        os.write(self._terminal, keys)

    @property
    def window(self) -> list[str]:
        """The lines that are on the screen now, from the top to the last that has something."""
        with self._lock:
            lines = [line.rstrip() for line in self._seen.display]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    @property
    def scrolled(self) -> list[str]:
        """Those that have left it at the top."""
        with self._lock:
            return [_text(line, self._seen.columns) for line in self._seen.history.top]

    @property
    def has_cursor(self) -> bool:
        """Whether the cursor is visible, at the beginning of a line."""
        with self._lock:
            return not self._seen.cursor.hidden and self._seen.cursor.x == 0

    def wait_for_line(self, *parts: str) -> list[str]:
        """Waits for a line on the screen that has all of these; returns the screen."""
        return self.wait_for_lines(parts)

    def wait_for_lines(self, *lines: Sequence[str]) -> list[str]:
        """Waits for lines below one another that have all of these parts each.

        What is seen may be half drawn: all that belongs together has to be waited for at once.

        Returns:
          The screen up to the last of them.
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
        """Waits until the launcher has ended and all of it is read; its exit code."""
        code = self.process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        return code

    def _set_size(self) -> None:
        size = struct.pack("HHHH", self.lines, self.columns, 0, 0)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)

    def _read_all(self) -> None:
        # The end of a terminal without processes is an error.
        with contextlib.suppress(OSError), self._output.open("ab", buffering=0) as output:
            while self._wakes not in select.select([self._terminal, self._wakes], [], [])[0]:
                if not (data := os.read(self._terminal, 2**16)):
                    break
                output.write(data)
                with self._lock:
                    self._stream.feed(data)


def _text(line: Any, columns: int) -> str:
    return "".join(line[n].data for n in range(columns)).rstrip()
