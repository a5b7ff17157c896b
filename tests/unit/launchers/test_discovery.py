"""The hosts of a job change while it runs, or cannot be found out for a time."""

from __future__ import annotations

import os
import re
import shlex
import threading
from pathlib import Path

import pytest

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.launchers.discovery import FixedHosts, HostFile, HostScript, LastKnownHosts
from hvd_elastic_keras.launchers.keeper import start_ticks
from tests.harness.hosts import wait_until


def test_fixed_hosts_stay() -> None:
    assert FixedHosts({"a": 2}).hosts() == {"a": 2}


def test_a_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "hosts.txt"
    path.write_text("a slots=2\n")
    found = HostFile(path)
    assert found.hosts() == found.hosts() == {"a": 2}
    path.write_text("a slots=2\nb slots=1\n")
    assert found.hosts() == {"a": 2, "b": 1}
    newer = tmp_path / "newer.txt"
    newer.write_text("b slots=1\na slots=2\n")
    os.utime(newer, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    newer.replace(path)
    assert list(found.hosts()) == ["b", "a"]


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--hostfile=.* cannot be read: .*No such file"):
        HostFile(tmp_path / "hosts.txt").hosts()


def test_a_script_is_asked_each_time(tmp_path: Path) -> None:
    path = tmp_path / "found"
    script = HostScript(f"cat {shlex.quote(str(path))} # as for horovodrun")
    path.write_text("a:2\nb\n")
    assert script.hosts() == {"a": 2, "b": 1}
    path.write_text("")
    assert script.hosts() == {}


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("echo a:1; echo no quota >&2; exit 3", "failed with exit code 3: no quota"),
        ("no-such-program", "failed with exit code 127: .*not found"),
        ("echo '{}'", r"line 1 of what echo '\{\}' printed has '\{\}'"),
    ],
)
def test_a_script_that_fails_is_told(command: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        HostScript(command).hosts()


def test_a_script_that_hangs_is_ended_with_all_it_has_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = HostScript(f"sleep 1000 & echo $! $$ > {shlex.quote(str(pids))}; wait", limit_s=0.5)
    found: list[str] = []
    while len(found) < 2:  # on a busy machine it may be ended before it has told
        with pytest.raises(ConfigurationError, match=re.escape("has not ended within 0.5 s")):
            script.hosts()
        found = pids.read_text().split() if pids.exists() else []
    wait_until(lambda: not any(start_ticks(int(pid)) for pid in found), "both are gone")


def test_a_script_that_is_being_asked_ends_with_the_job(tmp_path: Path) -> None:
    began = tmp_path / "began"
    os.mkfifo(began)
    script = HostScript(f"echo $$ > {shlex.quote(str(began))}; sleep 1000")
    failed: list[ConfigurationError] = []

    def ask() -> None:
        with pytest.raises(ConfigurationError, match="failed with exit code -9") as caught:
            script.hosts()
        failed.append(caught.value)

    asking = threading.Thread(target=ask)
    asking.start()
    pid = int(began.read_text())
    script.close()
    asking.join()
    assert failed
    assert start_ticks(pid) is None
    with pytest.raises(ConfigurationError, match="is not asked any more"):
        script.hosts()


class Changing:
    """Gives one answer after the other."""

    def __init__(self, *answers: dict[str, int] | Exception) -> None:
        self._answers = list(answers)

    def hosts(self) -> dict[str, int]:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self._answers = []


def test_hosts_stay_while_they_cannot_be_found_out_with_one_warning() -> None:
    told: list[str] = []
    broken = ConfigurationError("no quota")
    asked = Changing(broken, {"a": 1, "b": 1}, broken, OSError("no process"), {}, broken)
    known = LastKnownHosts(asked, {"a": 1}, told.append)
    found = [known.hosts() for _ in range(6)]
    assert found == [{"a": 1}, *[{"a": 1, "b": 1}] * 3, {}, {}]
    assert told == ["no quota; the hosts stay what they were"] * 3
