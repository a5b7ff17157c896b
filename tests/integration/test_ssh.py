"""Hosts report why no worker can be started on them by ssh."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvd_elastic_keras.launchers.ssh import RemoteStart, SshLauncher, SshSettings
from hvd_elastic_keras.settings import env
from tests.harness import hosts as harness
from tests.harness.hosts import Hosts
from tests.harness.job import REPOSITORY


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    harness.need_hosts()
    with Hosts(tmp_path / "hosts", ["eth0"]) as made:
        yield made


Failed = tuple[str, str, str]


def launcher_in(
    directory: Path,
    failed: list[Failed],
    ssh: str,
    *,
    python: str = sys.executable,
    remote_dir: str = "/",
) -> SshLauncher:
    """Returns a launcher that starts joiners with arguments that they refuse.

    No joiner ever comes.
    """
    logs = directory / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    return SshLauncher(
        SshSettings(tuple(shlex.split(ssh)), python, remote_dir),
        logs,
        directory / "ssh",
        environment=lambda worker_id: env.WorkerEnvironment("", "", worker_id, str(directory)),
        start=lambda worker_id, host: RemoteStart(["--helpful"], "token", {}),
        on_output=lambda worker_id, line: None,
        has_come=lambda worker_id: False,
        on_failed=lambda *what: failed.append(what),
    )


async def until_ended(launcher: SshLauncher) -> None:
    async def ended() -> None:
        while launcher.running():
            await asyncio.sleep(harness.POLL_S)

    await asyncio.wait_for(ended(), harness.LIMIT_S)


def told_of(directory: Path, ssh: str, **settings: str) -> str:
    """Returns the message when a joiner is started on host1 that way."""

    async def run() -> str:
        failed: list[Failed] = []
        launcher = launcher_in(directory, failed, ssh, **settings)
        launcher.launch("w3", "host1", lambda exit: None)
        await until_ended(launcher)
        ((worker_id, host, reason),) = failed
        assert (worker_id, host) == ("w3", "host1")
        launcher.close()
        assert not (directory / "ssh").exists()
        return reason

    return asyncio.run(run())


def test_a_host_without_what_is_needed_says_what_is_missing(hosts: Hosts, tmp_path: Path) -> None:
    ssh = f"ssh -F {hosts.ssh_config}"
    cases = [
        ({"remote_dir": "/no/such/place"}, "there is no directory /no/such/place"),
        ({"python": "/no/python"}, "there is no /no/python on it"),
        ({"python": "/usr/bin/python3"}, "lacks this package"),
        ({"remote_dir": str(REPOSITORY)}, "ended before it joined"),
    ]
    for number, (settings, expected) in enumerate(cases):
        assert expected in told_of(tmp_path / str(number), ssh, **settings)


def test_a_host_that_lets_nobody_in_says_what_to_do(hosts: Hosts, tmp_path: Path) -> None:
    ssh = f"ssh -F {hosts.ssh_config}"
    stranger = tmp_path / "known_hosts"
    stranger.touch()
    cases = [
        (f"{ssh} -o UserKnownHostsFile={stranger}", "its host key is not known"),
        (f"{ssh} -o PubkeyAuthentication=no", "set up a key"),
        (f"{ssh} -p 2222", "ssh does not reach it; try"),
    ]
    for number, (command, expected) in enumerate(cases):
        assert expected in told_of(tmp_path / str(number), command)


def test_of_a_worker_that_an_earlier_launcher_has_started_only_heartbeats_tell(
    hosts: Hosts, tmp_path: Path
) -> None:
    async def run() -> None:
        ssh, failed, later = f"ssh -F {hosts.ssh_config}", list[Failed](), list[Failed]()
        before = launcher_in(tmp_path, failed, ssh)
        before.launch("w3", "host1", lambda exit: None)
        await until_ended(before)
        assert failed
        after = launcher_in(tmp_path, later, ssh)
        assert after.adopt("w2", lambda exit: None) is None
        adopted = after.adopt("w3", lambda exit: None)
        assert adopted
        assert adopted.host == "host1"
        told = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(told.set_result, None)
        await told
        assert (after.running(), later) == ([], [])

    asyncio.run(run())
