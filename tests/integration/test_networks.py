"""Hosts have different names for their networks: each finds the one that leads to the master."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import hosts as harness
from tests.harness.hosts import Hosts

WAY = (
    "import sys; from hvd_elastic_keras.worker import network; print(network.way_to(*sys.argv[1:]))"
)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    harness.need_hosts()
    with Hosts(tmp_path / "hosts", ["eth0", "ens5"]) as made:
        yield made


def way_from(hosts: Hosts, host: str, wanted: str) -> str:
    process = hosts.run(
        host,
        [sys.executable, "-c", WAY, f"{hosts.launcher}:9", wanted],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return str(process.communicate(timeout=harness.LIMIT_S)[0].decode())


def test_each_host_takes_the_interface_that_leads_to_the_master_or_the_one_that_is_wanted(
    hosts: Hosts,
) -> None:
    for host in hosts.names:
        hosts.add_bridge(host, "docker0", "172.17.0.1/16")
    assert "interface='eth0'" in way_from(hosts, "host1", "")
    assert "interface='ens5'" in way_from(hosts, "host2", "")
    assert "interface='docker0'" in way_from(hosts, "host2", "docker0")
    told = way_from(hosts, "host2", "eth0").splitlines()[-1]
    assert "--network_interface=eth0 was given, but this host has no such interface" in told
    assert f"ens5 ({hosts.address('host2')}" in told
