"""Hosts as people and programs write them."""

from __future__ import annotations

import pytest

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.launchers.hosts import hosts_of_file, hosts_of_flag, hosts_of_lines

HOROVODRUN = "node1 slots=4\nnode2 slots=2\n"
OPEN_MPI = """
# rack 1
aa slots=2 max_slots=8
bb max-slots=8 slots = 3   # slots=9
user@cc.example.org
aa
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:2,b:4", {"a": 2, "b": 4}),
        ("a", {"a": 1}),
        (" a:2 , b ", {"a": 2, "b": 1}),
        ("b:1,a:2,b:3", {"b": 4, "a": 2}),
        (
            "[fd00::7]:2,10.0.0.8:1,me@node-1.x_y:3",
            {"fd00::7": 2, "10.0.0.8": 1, "me@node-1.x_y": 3},
        ),
        ("a:0,b:1", {"a": 0, "b": 1}),
    ],
)
def test_hosts_of_the_command_line(text: str, expected: dict[str, int]) -> None:
    found = hosts_of_flag(text)
    assert found == expected
    assert list(found) == list(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HOROVODRUN, {"node1": 4, "node2": 2}),
        (OPEN_MPI, {"aa": 3, "bb": 3, "user@cc.example.org": 1}),
        ("node1:4\r\nnode2\r\n", {"node1": 4, "node2": 1}),
    ],
)
def test_the_formats_of_others_are_read(text: str, expected: dict[str, int]) -> None:
    assert hosts_of_file(text, "hosts.txt") == expected


@pytest.mark.parametrize(
    "text", ["a:", "a:x", "a:-1", "a:2:3", "-oProxyCommand=x:1", "a b", "a:2,,b", "fd00::7:2", "ä"]
)
def test_a_mistake_is_named_with_what_was_expected(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--hosts has '.*', expected a host with"):
        hosts_of_flag(text)


def test_a_mistake_in_a_file_is_named_by_its_line() -> None:
    with pytest.raises(ConfigurationError, match=r"line 3 of hosts\.txt has 'b slots=x'"):
        hosts_of_lines("a\n\nb slots=x\n", "hosts.txt")


def test_there_must_be_a_slot_to_begin_with_but_a_script_may_find_none_for_a_time() -> None:
    with pytest.raises(ConfigurationError, match="--hosts has no host with a slot"):
        hosts_of_flag("a:0")
    with pytest.raises(ConfigurationError, match=r"hosts\.txt has no host with a slot"):
        hosts_of_file("# nobody\n", "hosts.txt")
    assert hosts_of_lines("", "script") == {}
