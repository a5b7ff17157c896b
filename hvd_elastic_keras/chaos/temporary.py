"""Changes a job for a while: a separate process makes the change, and undoes it in any case.

    python -m hvd_elastic_keras.chaos.temporary disk_full SECONDS PID
    python -m hvd_elastic_keras.chaos.temporary network_cut SECONDS ADDRESS PORT

That process says "done" on standard output. It undoes the change when the time is over, or when its
standard input ends. The input also ends when chaos is killed.
"""

from __future__ import annotations

import contextlib
import resource
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

from hvd_elastic_keras.common.errors import ElasticError

DONE = "done"
NEEDED = "iptables"
CAP_NET_ADMIN = 12
COMMENT = "hvd_elastic_keras.chaos"
"""A comment in the firewall rules, for people who look at them."""


class NotPossibleError(ElasticError):
    """The change could not be made. Everything is as it was."""


class Temporary:
    """A change that lasts until its time is over or `end` is called.

    Raises:
      NotPossibleError: the change cannot be made.
    """

    def __init__(self, kind: str, duration_s: float, *arguments: object) -> None:
        command = [sys.executable, "-m", __name__, kind, str(duration_s), *map(str, arguments)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for chaos, which ends this process
        )
        if self._said().strip() != DONE:
            error = self._process.communicate()[1].strip().splitlines()
            raise NotPossibleError(error[-1] if error else f"{kind} could not be done")

    def is_over(self) -> bool:
        """Whether everything is as it was before."""
        return self._process.poll() is not None

    def end(self) -> None:
        """Undoes the change, now."""
        self._process.communicate()

    def _said(self) -> str:
        return self._process.stdout.readline() if self._process.stdout else ""


def missing_for_cuts() -> str:
    """Returns the things that this process lacks to cut networks; empty if it lacks nothing."""
    lacks = [] if _may_change_networks() else ["the rights of root (CAP_NET_ADMIN)"]
    return " and ".join(lacks if shutil.which(NEEDED) else [*lacks, f"the program {NEEDED}"])


def _may_change_networks() -> bool:
    with open("/proc/self/status", encoding="ascii", errors="replace") as lines:
        found = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
    return bool(int(found, 16) >> CAP_NET_ADMIN & 1)


# --- in the process of its own -----------------------------------------------------------


@contextlib.contextmanager
def full_disk(pid: int) -> Iterator[None]:
    """Keeps the files that a process writes from growing, inside the `with` block.

    The process gets EFBIG in place of ENOSPC.
    """
    before, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, most))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (before, most))


@contextlib.contextmanager
def cut_network(address: str, port: int) -> Iterator[None]:
    """Drops all packets between a port of this machine and an address, inside the `with` block."""
    tail = f"-m comment --comment {COMMENT} -j DROP"
    rules = (
        f"INPUT -p tcp -s {address} --dport {port} {tail}",
        f"OUTPUT -p tcp -d {address} --sport {port} {tail}",
    )
    with contextlib.ExitStack() as made:
        for rule in rules:
            _iptables("-I", rule)
            made.callback(_iptables, "-D", rule)
        yield


def _iptables(action: str, rule: str) -> None:
    command = [NEEDED, "-w", action, *rule.split()]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise NotPossibleError(f"{' '.join(command)}: {made.stderr.strip()}")


def _change(kind: str, arguments: list[str]) -> contextlib.AbstractContextManager[None]:
    if kind == "disk_full":
        return full_disk(int(arguments[0]))
    return cut_network(arguments[0], int(arguments[1]))


def main() -> None:
    """Makes a change, and undoes it."""
    kind, seconds, *arguments = sys.argv[1:]
    signal.signal(signal.SIGTERM, _exit)
    try:
        with _change(kind, arguments):
            print(DONE, flush=True)
            select.select([0], [], [], float(seconds))
    except (OSError, NotPossibleError) as error:
        sys.exit(str(error))


def _exit(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(1)


if __name__ == "__main__":
    main()
