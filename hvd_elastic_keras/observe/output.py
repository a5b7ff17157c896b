"""Prints without ever making the launcher wait: no output may delay a decision.

A disk may be full; a reader may pause (`| less`, a stopped terminal) or be gone. Inside
`best_effort`, a thread writes everything that goes to stdout and stderr. No call waits or fails.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from absl import logging as absl_logging

MOST_BYTES = 2**20
"""Most bytes that wait to be written. If there are more, the oldest are left out."""
AT_ONCE = 2**14
"""Bytes that are written at once, roughly.

The thread may have to wait for its turn after each write. With one write per line, a launcher that
prints many lines would print more than the thread writes.
"""
RETRY_S = 0.5
PAUSED_AFTER_S = 5.0
"""A reader that has taken nothing for this long does not read at present."""
END_WITHIN_S = 60.0
"""Seconds to wait for a slow reader at the end."""
GONE = (errno.EPIPE, errno.EIO, errno.EBADF, errno.ENXIO, errno.ENODEV)
"""Errors after which nobody can ever read the output: the reader or the terminal has ended."""
HEAD = "[elastic] the launcher's output continues here: its terminal or reader is gone"
_ORDERS = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\r")
"""Terminal commands for colours and movements."""


class Outlet:
    """Writes to an open file in the order of the calls. No call waits or fails.

    If too much waits to be written, the oldest output is left out, and a line in its place says
    so. If nobody can read the file any more, all remaining and later output goes to the file
    `instead`.

    Args:
      descriptor: the descriptor of the file.
      most_bytes: most bytes that may wait.

    Attributes:
      instead: the file to go on in; None if there is none (yet), and the output is then lost.
      moved: whether the output goes to `instead`, because nobody can read the file any more.
    """

    def __init__(self, descriptor: int, most_bytes: int = MOST_BYTES) -> None:
        self.instead: Path | None = None
        self.moved = False
        self._descriptor = descriptor
        self._most_bytes = most_bytes
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._left_out = 0
        self._in_hand = memoryview(b"")
        self._in_line = False
        self._error = ""
        self._progress_at = time.monotonic()
        self._ending = False
        threading.Thread(target=self._run, name="output", daemon=True).start()

    def put(self, data: bytes) -> None:
        """Queues data to be written."""
        with self._changed:
            if not self.behind:
                self._progress_at = time.monotonic()
            if self.moved:  # the caller may have begun to draw before
                data = _ORDERS.sub(b"", data)
            self._waiting.append(data)
            self._size += len(data)
            while self._size > self._most_bytes and len(self._waiting) > 1:
                self._left_out += self._taken().count(b"\n")
            self._changed.notify_all()

    @property
    def behind(self) -> bool:
        """Whether something is not written yet."""
        return bool(self._waiting or self._in_hand or self._left_out)

    @property
    def trouble(self) -> str:
        """Why people do not see what is printed; empty if they do."""
        if self.moved:
            return (
                "the reader of the launcher's output is gone: further output goes to "
                f"{self.instead}"
            )
        if self._error:
            return f"what the launcher prints cannot be written ({self._error})"
        if self.behind and time.monotonic() - self._progress_at > PAUSED_AFTER_S:
            return (
                "nobody reads the launcher's output at present (a paused reader, a stopped "
                "terminal)"
            )
        return ""

    def end(self) -> None:
        """Waits until everything is written, as long as somebody reads it."""
        deadline = time.monotonic() + END_WITHIN_S
        with self._changed:
            self._ending = True
            self._changed.notify_all()
            with contextlib.suppress(KeyboardInterrupt):  # whoever interrupts has waited enough
                while self.behind and time.monotonic() < deadline:
                    if not self._changed.wait(PAUSED_AFTER_S):
                        break
            if self.behind:
                self._move("it was not read to the end")
                self._write_rest()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._left_out)
                self._in_hand = memoryview(self._next())
            while self._in_hand:
                self._write_some()

    def _next(self) -> bytes:
        if self._left_out:
            return self._missing()
        data = [self._taken()]
        while self._waiting and sum(map(len, data)) < AT_ONCE:
            data.append(self._taken())
        return b"".join(data)

    def _missing(self) -> bytes:
        lines, self._left_out = self._left_out, 0
        begin = "\n" if self._in_line else ""
        return (
            f"{begin}[elastic] warning: lines are missing here ({lines}): they could not be "
            "written in time\n"
        ).encode()

    def _taken(self) -> bytes:
        data = self._waiting.popleft()
        self._size -= len(data)
        return data

    def _write_some(self) -> None:
        try:
            count = os.write(self._descriptor, self._in_hand[:AT_ONCE])
        except BlockingIOError:  # another process that has the file made it non-blocking
            select.select([], [self._descriptor], [], RETRY_S)
            return
        except OSError as error:
            with self._changed:
                self._take(error)
            return
        with self._changed:
            self._in_line = not self._in_hand[:count].tobytes().endswith(b"\n")
            self._in_hand = self._in_hand[count:]
            self._error = ""
            self._progress_at = time.monotonic()
            self._changed.notify_all()

    def _take(self, error: OSError) -> None:
        reason = error.strerror or str(error)
        if error.errno in GONE or self._ending:
            self._move(reason)
            return
        self._error = reason
        self._changed.wait(RETRY_S)

    def _move(self, reason: str) -> None:
        """Goes on in the file `instead`. Without it, or if it fails too, drops the output."""
        missing = [self._missing()] if self._left_out else []
        waiting = (self._in_hand.tobytes(), *missing, *self._waiting)
        left = [_ORDERS.sub(b"", data) for data in waiting]
        self._forget()
        if self.moved or self.instead is None:
            return
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(self.instead, flags, 0o644)
            self.moved = True
            self._in_hand = memoryview(f"{HEAD} ({reason})\n".encode())
            self._waiting.extend(left)
            self._size = sum(map(len, left))

    def _forget(self) -> None:
        self._waiting.clear()
        self._in_hand = memoryview(b"")
        self._size, self._left_out, self._error = 0, 0, ""
        self._changed.notify_all()

    def _write_rest(self) -> None:
        """Writes the rest in the calling thread: the other may never return from its write."""
        with contextlib.suppress(OSError):
            os.write(self._descriptor, b"".join([self._in_hand, *self._waiting]))
        self._forget()


class _Stream:
    """A stream in place of stdout or stderr, which writes to an outlet."""

    def __init__(self, outlet: Outlet, stream: TextIO) -> None:
        self.outlet = outlet
        self._stream = stream

    def write(self, text: str) -> int:
        self.outlet.put(text.encode(self._stream.encoding or "utf-8", "replace"))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def flush(self) -> None:
        """Does nothing: the thread of the outlet writes."""

    def isatty(self) -> bool:
        return not self.outlet.moved and self._stream.isatty()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_outlets: list[Outlet] = []
"""The outlets of this process: one, or two if stdout and stderr are not the same."""


def open_closed_streams() -> None:
    """Opens `/dev/null` for each standard stream that is closed (`>&-`).

    Otherwise the next file that is opened would get the stream's number, and what is printed.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The new descriptor gets the lowest free number.
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


@contextlib.contextmanager
def best_effort() -> Iterator[None]:
    """Lets threads write what this process prints inside the `with` block. Waits at its end."""
    before: tuple[Any, Any] = sys.stdout, sys.stderr
    handler = absl_logging.get_absl_handler().python_handler
    stream_of_log = handler.stream
    sys.stdout, sys.stderr = _streams(*before)
    if stream_of_log is before[1]:
        handler.setStream(sys.stderr)
    try:
        yield
    finally:
        end()
        _outlets.clear()
        sys.stdout, sys.stderr = before
        if stream_of_log is before[1]:
            handler.setStream(stream_of_log)


def _streams(stdout: Any, stderr: Any) -> tuple[Any, Any]:
    """Replaces both streams. A stream without an open file, such as in a test, stays as it is."""
    out, err = _descriptor(stdout), _descriptor(stderr)
    if out is not None:
        stdout = _Stream(_new_outlet(out), stdout)
    if err is not None:
        # Output to the same file goes through one outlet, which keeps the order.
        same = out is not None and os.path.sameopenfile(out, err)
        stderr = _Stream(_outlets[0] if same else _new_outlet(err), stderr)
    return stdout, stderr


def _new_outlet(descriptor: int) -> Outlet:
    _outlets.append(Outlet(descriptor))
    return _outlets[-1]


def _descriptor(stream: Any) -> int | None:
    with contextlib.suppress(AttributeError, OSError, ValueError):
        stream.flush()
    try:
        descriptor: int = stream.fileno()
        os.fstat(descriptor)
    except (AttributeError, OSError, ValueError):  # None, or closed
        return None
    return descriptor


def go_on_in(path: Path) -> None:
    """Sets the file for output that nobody can read any more at its usual place."""
    for outlet in _outlets:
        outlet.instead = path


def troubles() -> list[str]:
    """Returns why people do not see what is printed; empty if they do."""
    return list(dict.fromkeys(filter(None, (outlet.trouble for outlet in _outlets))))


def end() -> None:
    """Waits until everything is written, as long as somebody reads it."""
    for outlet in _outlets:
        outlet.end()


def is_gone(stream: Any) -> bool:
    """Whether nobody can read a stream at its usual place any more."""
    return isinstance(stream, _Stream) and stream.outlet.moved


def is_behind(stream: Any) -> bool:
    """Whether something written to a stream has not reached its file or terminal yet."""
    return isinstance(stream, _Stream) and stream.outlet.behind
