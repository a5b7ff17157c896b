"""Which interface leads to the master, and what is said where none does."""

from __future__ import annotations

import pytest

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.worker import network

FOUND = {
    "lo": ["127.0.0.1", "::1"],
    "ens5": ["10.0.0.7", "10.0.0.8", "fd00::7"],
    "ib0": ["192.168.9.7"],
    "wlan0": [],
}


@pytest.mark.parametrize(
    ("wanted", "own", "expected"),
    [
        ("", "127.0.0.1", "lo"),
        ("", "10.0.0.7", "ens5"),
        ("", "10.0.0.8", "ens5"),
        ("ib0", "10.0.0.7", "ib0"),
    ],
)
def test_the_way_to_the_master_is_taken_unless_another_is_wanted(
    wanted: str, own: str, expected: str
) -> None:
    assert network.interface(wanted, own, FOUND) == expected


@pytest.mark.parametrize(
    ("wanted", "own", "problem"),
    [
        ("eth0", "10.0.0.7", "--network_interface=eth0 was given.*no such interface"),
        ("wlan0", "10.0.0.7", "--network_interface=wlan0 was given.*no address"),
        ("", "10.9.9.9", "has the address 10.9.9.9"),
    ],
)
def test_who_has_no_way_is_told_what_there_is(wanted: str, own: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem) as caught:
        network.interface(wanted, own, FOUND)
    there = "lo (127.0.0.1, ::1), ens5 (10.0.0.7, 10.0.0.8, fd00::7), ib0 (192.168.9.7)."
    assert str(caught.value).endswith(there)


def test_a_master_on_this_machine_is_reached_over_its_loopback() -> None:
    expected = network.WayToMaster("lo", ("127.0.0.1", 9))
    assert network.way_to("127.0.0.1:9") == expected
    assert network.way_to("localhost:9") == expected


@pytest.mark.skipif("::1" not in network.addresses()["lo"], reason="this host has no IPv6")
def test_a_master_may_have_an_ipv6_address() -> None:
    assert network.way_to("[::1]:9") == network.WayToMaster("lo", ("::1", 9))


@pytest.mark.parametrize("master", ["no-such-host.invalid:9", "[fe80::1]:9"])
def test_a_master_that_cannot_be_reached_is_told(master: str) -> None:
    with pytest.raises(ConfigurationError, match="to which this host has a route") as caught:
        network.way_to(master)
    assert f"The master at {master} cannot be reached" in str(caught.value)
    assert "lo (127.0.0.1" in str(caught.value)


@pytest.mark.parametrize(
    ("iface", "expected"),
    [
        ("lo", "127.0.0.1"),
        ("ens5,ib0", "10.0.0.7"),
        ("six", "fd00::8"),
        ("wlan0", ""),
        ("eth0", ""),
        ("", ""),
    ],
)
def test_members_reach_each_other_at_the_address_that_gloo_takes(iface: str, expected: str) -> None:
    found = {**FOUND, "six": ["fd00::8", "fd00::9"], "ens5": ["fd00::7", "10.0.0.7", "10.0.0.8"]}
    assert network.first_address(iface, found) == expected
