"""The hosts of the tests are isolated from each other, reachable, and gone afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import hosts as harness
from tests.harness.hosts import Hosts
from tests.harness.job import REPOSITORY

pytestmark = pytest.mark.slow
LISTEN = """
import socket
listening = socket.create_server(("", 5000))
print("listening", flush=True)
connection, peer = listening.accept()
connection.settimeout(2)
try:
    print(connection.recv(10).decode(), flush=True)
except TimeoutError:
    print("silence", flush=True)
"""
HOLD_HOSTS = """
import sys
from pathlib import Path
from tests.harness.hosts import Hosts
with Hosts(Path(sys.argv[1]), ["eth0"]) as hosts:
    print(hosts.launcher, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    """Yields three hosts. The second one has another name for its network."""
    harness.need_hosts()
    with Hosts(tmp_path / "hosts", ["eth0", "ens5", "eth0"]) as made:
        yield made


def listener(hosts: Hosts, host: str) -> subprocess.Popen[bytes]:
    process = hosts.run(host, [sys.executable, "-c", LISTEN], stdout=subprocess.PIPE)
    assert process.stdout
    assert process.stdout.readline() == b"listening\n"
    return process


def test_three_hosts_have_names_and_processes_of_their_own_and_reach_each_other(
    hosts: Hosts,
) -> None:
    assert [hosts.call(h, "hostname").strip() for h in hosts.names] == hosts.names
    process = listener(hosts, "host1")
    assert len(hosts.pids("host1")) == 1
    assert hosts.pids("host2") == []
    send = "import socket; socket.create_connection(('host1', 5000)).sendall(b'hello')"
    hosts.call("host2", sys.executable, "-c", send)
    assert process.communicate(timeout=harness.LIMIT_S)[0] == b"hello\n"
    assert hosts.pids("host1") == []


def test_a_host_is_reached_by_ssh_under_its_name(hosts: Hosts) -> None:
    result = subprocess.run(
        ["ssh", "-F", str(hosts.ssh_config), "-o", "BatchMode=yes", "host3", "hostname; whoami"],
        capture_output=True,
        text=True,
        timeout=harness.LIMIT_S,
        check=False,
    )
    assert (result.stdout, result.stderr) == ("host3\nroot\n", "")


def test_who_is_cut_off_hears_nothing_and_no_end_either(hosts: Hosts) -> None:
    process = listener(hosts, "host1")
    code = "import socket, sys\nc = socket.create_connection(('host1', 5000))\n"
    code += "print('connected', flush=True)\nsys.stdin.readline()\nc.close()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    sender = hosts.run("host2", [sys.executable, "-c", code], **pipes)
    assert sender.stdout
    assert sender.stdout.readline() == b"connected\n"
    hosts.cut("host1")
    sender.communicate(b"\n", timeout=harness.LIMIT_S)
    assert process.communicate(timeout=harness.LIMIT_S)[0] == b"silence\n"
    hosts.heal("host1")
    assert hosts.call("host2", "ssh-keyscan", "-t", "ed25519", "host1")


def test_a_host_that_is_powered_off_has_no_process_until_it_boots(hosts: Hosts) -> None:
    process = listener(hosts, "host2")
    hosts.power_off("host2")
    assert process.wait(harness.LIMIT_S) != 0
    assert hosts.pids("host2") == []
    hosts.boot("host2")
    assert hosts.call("host2", "hostname") == "host2\n"


def test_a_signal_reaches_the_command_and_its_exit_code_comes_back(hosts: Hosts) -> None:
    code = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); "
    code += "print('ready', flush=True); signal.pause()"
    process = hosts.run("host1", [sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"
    hosts.signal(process, signal.SIGTERM)
    assert process.wait(harness.LIMIT_S) == 75


def test_test_processes_do_not_collide_and_what_a_killed_one_leaves_is_removed(
    hosts: Hosts, tmp_path: Path
) -> None:
    def namespaces() -> set[str]:
        return set(os.listdir("/run/netns"))

    own = namespaces()
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD_HOSTS, str(tmp_path / "other")],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert other.stdout
    address = other.stdout.readline().decode().strip()
    assert address not in ("", hosts.launcher)
    theirs = namespaces() - own
    assert theirs
    other.kill()
    other.communicate(timeout=harness.LIMIT_S)
    with Hosts(tmp_path / "third", ["eth0"]) as third:
        assert third.launcher != hosts.launcher
    assert not theirs & namespaces()
    assert hosts.call("host1", "hostname") == "host1\n"


def test_a_machine_that_allows_no_hosts_says_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(harness, "SEARCHED", "/nowhere")
    if os.geteuid() == 0:
        assert "apt-get install iproute2 openssh-server" in harness.obstacle()
    monkeypatch.setenv(harness.REQUIRED, "required")
    with pytest.raises(pytest.fail.Exception):
        harness.need_hosts()
