"""A network cable with a latency, in user space, because many kernels lack netem.

    python slow_link.py OUTER NAMESPACE INNER ONE_WAY_MS

Makes two network interfaces, OUTER here and INNER in a namespace. Data sent into one comes out of
the other one after the given time. Prints "up" on standard output when they are ready. They end
with this process. Needs root.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import os
import struct
import subprocess
import sys
import threading
import time

TUNSETIFF = 0x400454CA
TAP_WITHOUT_HEADER = 0x1002
MOST_WAITING = 20_000
"""Most frames that may wait. Further frames are lost, as on a real line."""


def tap(name: str) -> int:
    """Makes an interface. Its frames are read from and written to the descriptor."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), TAP_WITHOUT_HEADER))
    return descriptor


class OneWay:
    """Passes frames on, `delay_s` after they arrive."""

    def __init__(self, source: int, sink: int, delay_s: float) -> None:
        self._source, self._sink, self._delay_s = source, sink, delay_s
        self._frames: collections.deque[tuple[float, bytes]] = collections.deque()
        self._came = threading.Condition()
        for work in (self._take, self._give):
            threading.Thread(target=work, daemon=True).start()

    def _take(self) -> None:
        while True:
            try:
                frame = os.read(self._source, 65_536)
            except OSError:  # the interface is down
                time.sleep(0.01)
                continue
            with self._came:
                if len(self._frames) < MOST_WAITING:
                    self._frames.append((time.monotonic() + self._delay_s, frame))
                    self._came.notify()

    def _give(self) -> None:
        while True:
            with self._came:
                self._came.wait_for(lambda: self._frames)
                due, frame = self._frames.popleft()
            time.sleep(max(0.0, due - time.monotonic()))
            with contextlib.suppress(OSError):
                os.write(self._sink, frame)


class Cables:
    """Makes such cables, each in a process of its own.

    Use it in a `with` block, at the end of which they are gone.
    """

    def __init__(self, one_way_ms: float) -> None:
        self._one_way_ms = one_way_ms
        self._made: list[subprocess.Popen[str]] = []

    def connect(self, outer: str, namespace: str, inner: str) -> None:
        """Makes a cable."""
        made = subprocess.Popen(
            [sys.executable, __file__, outer, namespace, inner, str(self._one_way_ms)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._made.append(made)
        if made.stdout is None or made.stdout.readline() != "up\n":
            raise SystemExit("no cable could be made")

    def __enter__(self) -> Cables:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._made:
            process.kill()
            process.wait()


def main() -> None:
    """Makes the cable, and passes frames on until standard input ends."""
    outer, namespace, inner, one_way_ms = sys.argv[1:]
    here, there = tap(outer), tap(f"{outer}i")
    move = f"link set {outer}i netns {namespace} name {inner}"
    subprocess.run(["ip", *move.split()], check=True)
    for ends in ((here, there), (there, here)):
        OneWay(*ends, float(one_way_ms) / 1e3)
    print("up", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
