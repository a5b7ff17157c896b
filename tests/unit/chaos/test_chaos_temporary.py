"""What chaos does for a while is undone, however chaos ends."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hvd_elastic_keras.chaos import temporary
from hvd_elastic_keras.chaos.temporary import NotPossibleError, Temporary
from tests.harness import hosts as harness
from tests.harness.hosts import Hosts

LONG_S = 600.0
WRITES = """
import sys
file = open(sys.argv[1], "wb", buffering=0)
print("here", flush=True)
for _ in sys.stdin:
    try:
        print(file.write(b"x"), flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
"""
ASKS = """
import sys
from hvd_elastic_keras.chaos.temporary import Temporary
held = Temporary(*sys.argv[1:])
print("done", flush=True)
sys.stdin.read()
"""


class Writer:
    """A process that writes a byte to its file whenever it is asked to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.line()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def writes(self) -> str:
        """What comes of it."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.line()

    @property
    def limit(self) -> int:
        return int(psutil.Process(self.process.pid).rlimit(psutil.RLIMIT_FSIZE)[0])


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    command = [sys.executable, "-c", WRITES, str(tmp_path / "file")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Writer(process)
        process.kill()


def killed_asker(*arguments: object) -> None:
    """A process that has asked for a change, and is killed."""
    command = [sys.executable, "-c", ASKS, *map(str, arguments)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        process.send_signal(signal.SIGKILL)


def test_the_files_of_a_process_do_not_grow_until_it_is_over(writer: Writer) -> None:
    assert writer.writes() == "1"
    held = Temporary("disk_full", LONG_S, writer.process.pid)
    assert not held.is_over()
    assert writer.writes() == "File too large"
    held.end()
    assert held.is_over()
    assert writer.writes() == "1"


def test_a_full_disk_ends_with_its_time(writer: Writer) -> None:
    held = Temporary("disk_full", 0.0, writer.process.pid)
    harness.wait_until(held.is_over, "its time is over")
    assert writer.limit == resource.RLIM_INFINITY


def test_a_full_disk_ends_when_chaos_is_killed(writer: Writer) -> None:
    killed_asker("disk_full", LONG_S, writer.process.pid)
    harness.wait_until(lambda: writer.limit == resource.RLIM_INFINITY, "the limit is gone")


def test_what_cannot_be_done_is_told(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    with pytest.raises(NotPossibleError, match="No such process"):
        Temporary("disk_full", LONG_S, gone.pid)


def test_who_may_not_change_networks_is_told_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    assert "the program iptables" in temporary.missing_for_cuts()


def rules_for(address: str) -> list[str]:
    found = subprocess.run(
        ["iptables", "-w", "-S"], capture_output=True, text=True, check=True
    ).stdout
    return [line for line in found.splitlines() if f"{address}/32" in line]


def test_a_host_does_not_reach_the_launcher_until_it_is_over(tmp_path: Path) -> None:
    harness.need_hosts()
    if missing := temporary.missing_for_cuts():
        pytest.skip(missing)
    with Hosts(tmp_path / "hosts", ["eth0"]) as hosts:
        address = hosts.address("host1")
        held = Temporary("network_cut", LONG_S, address, 7)
        assert len(rules_for(address)) == 2
        assert all("--dport 7 " in r or "--sport 7 " in r for r in rules_for(address))
        held.end()
        assert rules_for(address) == []
        killed_asker("network_cut", LONG_S, address, 7)
        harness.wait_until(lambda: not rules_for(address), "the rules are gone")
