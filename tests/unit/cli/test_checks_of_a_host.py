"""What `doctor` says of a disk, of memory, of an installation: each problem has its line."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_keras.cli.checks import machine, software
from hvd_elastic_keras.cli.checks.finding import OK, PROBLEM, WARNING, Finding, exit_code
from hvd_elastic_keras.common import versions

ROOT = Path(__file__).resolve().parents[3]
SETUP = (ROOT / "setup.py").read_text()
MIB, GIB = 2**20, 2**30


@pytest.mark.parametrize(
    ("levels", "code"), [([], 0), ([OK, WARNING], 0), ([OK, PROBLEM, OK], 1), ([PROBLEM], 1)]
)
def test_only_a_problem_makes_the_exit_code_1(levels: list[str], code: int) -> None:
    assert exit_code(Finding(level, "x", "y") for level in levels) == code


def test_a_finding_is_one_line_whatever_an_error_says() -> None:
    line = Finding(PROBLEM, "TensorFlow", "a\n  b.", "c", "Do d").line
    assert line == "problem  TensorFlow      a b.; expected c. Do d"


@pytest.mark.parametrize(
    ("free", "level"),
    [(GIB, OK), (GIB - 1, WARNING), (64 * MIB, WARNING), (64 * MIB - 1, PROBLEM), (0, PROBLEM)],
)
def test_a_disk_that_fills_is_a_warning_and_then_a_problem(free: int, level: str) -> None:
    finding = machine.room("disk, here", "/data", free, "--job_dir")
    assert finding.level == level
    assert "/data" in finding.found
    assert ("--job_dir" in finding.remedy) == (level != OK)


@pytest.mark.parametrize("path", ["/proc", "/nowhere/at/all"])
def test_a_directory_that_cannot_be_written_is_a_problem(path: str) -> None:
    finding = machine.directory("disk, temporary", Path(path), "TMPDIR")
    assert (finding.level, "TMPDIR" in finding.remedy) == (PROBLEM, True)


def test_a_directory_with_room_is_all_right_and_nothing_is_left_there(tmp_path: Path) -> None:
    assert machine.directory("disk, here", tmp_path, "--job_dir").check == "disk, here"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("free", "level"), [(64 * MIB, OK), (64 * MIB - 1, WARNING)])
def test_little_shared_memory_is_a_warning(free: int, level: str) -> None:
    assert machine.shared_memory(free).level == level


@pytest.mark.parametrize(("limit", "level"), [(-1, OK), (352, OK), (351, WARNING), (64, WARNING)])
def test_16_workers_need_352_open_files(limit: int, level: str) -> None:
    finding = machine.files_open(limit)
    assert finding.level == level
    assert finding.expected == ("352 for 16 workers" if level == WARNING else "")


@pytest.mark.parametrize(
    ("processors", "memory", "level", "words"),
    [
        (8, 16 * GIB, OK, "room for about 16 small workers"),
        (1, GIB, OK, "1 processor"),
        (8, 2 * GIB - 1, WARNING, "--num_workers=1"),
        (8, 100 * MIB, WARNING, "--num_workers=1"),
    ],
)
def test_memory_for_fewer_workers_than_a_job_starts_with_is_a_warning(
    processors: int, memory: int, level: str, words: str
) -> None:
    finding = machine.processors_and_memory(processors, memory)
    assert finding.level == level
    assert words in finding.line


@pytest.mark.parametrize(
    ("workers", "gib", "told"), [(2, 2, False), (3, 2, True), (1, 0, False), (100, 20, True)]
)
def test_workers_that_memory_has_no_room_for_are_a_warning(
    workers: int, gib: int, told: bool
) -> None:
    lines = machine.too_little_memory_for(workers, gib * 2**30)
    assert [f"{workers} workers start on this host" in line for line in lines] == [True] * told
    assert all(f"--num_workers={gib}" in line for line in lines)


def test_a_container_has_no_more_memory_than_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(machine, "MEMORY_LIMIT", limit)
    unlimited = machine.available_bytes()
    limit.write_text("max\n")
    assert machine.available_bytes() > 1_000_000
    assert unlimited > 1_000_000
    limit.write_text("1000000\n")
    assert machine.available_bytes() == 1_000_000


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("max 100000\n", 64), ("250000 100000\n", 3), ("6400000 100000\n", 64), ("?", 64)],
)
def test_a_container_has_no_more_processors_than_its_limit(
    limit: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "PROCESSOR_LIMIT", tmp_path / "cpu.max")
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(64)))
    assert machine.processors() == 64
    (tmp_path / "cpu.max").write_text(limit)
    assert machine.processors() == expected


def test_a_host_that_only_reaches_itself_is_a_warning() -> None:
    finding = machine.interface("127.0.0.1", {"lo": ["127.0.0.1"]})
    assert finding.level == WARNING
    assert "lo (127.0.0.1)" in finding.found


def test_the_interface_that_others_reach_is_named_and_so_are_those_to_choose() -> None:
    found = {"lo": ["127.0.0.1"], "eth0": ["10.0.0.7"], "ib0": ["10.1.0.7"]}
    finding = machine.interface("10.0.0.7", found)
    assert finding.level == OK
    assert "10.0.0.7, eth0" in finding.found
    assert "ib0 (10.1.0.7)" in finding.found


def test_an_address_at_which_nobody_can_listen_is_what_was_asked_for() -> None:
    assert machine.port("port", "127.0.0.1", PROBLEM).level == OK
    finding = machine.port("port", "192.0.2.77", PROBLEM)
    assert finding.level == PROBLEM
    assert "192.0.2.77" in finding.line


def test_a_port_to_which_connections_are_refused_is_a_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = socket.create_connection

    def to_a_closed_port(address: tuple[str, int], timeout_s: float) -> socket.socket:
        with socket.socket() as closed:
            closed.bind((address[0], 0))
            return real(closed.getsockname(), timeout_s)

    monkeypatch.setattr(socket, "create_connection", to_a_closed_port)
    finding = machine.port("port", "127.0.0.1", PROBLEM)
    assert finding.level == PROBLEM
    assert "refused" in finding.found


def test_what_only_some_jobs_need_is_never_a_problem() -> None:
    missing = software.program("no-such-program", "its-package", "--hosts")
    assert (missing.level, missing.remedy) == (OK, "sudo apt-get install its-package")
    library = software.library("no_such_library", "--launcher=kubernetes")
    assert library.level == OK
    assert library.remedy.endswith("pip install no_such_library")
    assert software.program("sh", "dash", "all").found.endswith("/sh")
    assert software.library("json", "all").found == "installed"


@pytest.mark.parametrize(
    ("version", "level"), [("3.9.2", PROBLEM), ("3.10.0", OK), ("3.13.9", OK), ("3.14.0", PROBLEM)]
)
def test_another_python_than_the_tested_ones_is_a_problem(
    version: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(software.platform, "python_version", lambda: version)
    system = f"{software.platform.system()} {software.platform.machine()}"
    monkeypatch.setattr(software, "TESTED_SYSTEM", system)
    assert software.python().level == level


def test_another_system_than_the_tested_one_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "TESTED_SYSTEM", "Minix m68k")
    assert (software.python().level, "Minix" in software.python().expected) == (WARNING, True)


def test_the_tested_versions_are_those_of_setup_py() -> None:
    assert f'"tensorflow{versions.TENSORFLOW.requirement}"' in SETUP
    assert f'"keras{versions.KERAS.requirement}"' in SETUP
    assert f'python_requires="{versions.PYTHON.requirement}"' in SETUP


def test_all_packages_of_setup_py_are_looked_for() -> None:
    missing = [name for name in software._required() if re.search(rf'"{name}\b', SETUP) is None]
    assert missing == []
    assert {"aiohttp", "msgspec", "psutil"} <= set(software._required())
    assert not {"tensorflow", "pytest", "kubernetes"} & set(software._required())


def test_a_package_that_is_missing_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    distribution = tmp_path / "hvd_elastic_keras-9.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: hvd-elastic-keras\nVersion: 9\n"
        "Requires-Dist: no-such-package>=2\nRequires-Dist: keras>=3\nRequires-Dist: psutil\n"
        'Requires-Dist: pytest-no-such; extra == "dev"\n'
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    finding = software.packages()
    assert (finding.level, finding.found) == (PROBLEM, "no-such-package missing")


@pytest.mark.parametrize(
    ("found", "level", "words"),
    [
        ({"version": "0.28.1", "gloo": False, "nccl": False}, PROBLEM, "without Gloo"),
        ({"version": "0.28.1", "gloo": True, "nccl": False}, WARNING, "patch"),
        ({"version": "0.28.1+hvdelastic1", "gloo": True, "nccl": False}, WARNING, "hvdelastic1"),
        ({"version": versions.wanted_horovod(), "gloo": True, "nccl": True}, OK, "NCCL"),
    ],
)
def test_a_horovod_is_judged_by_its_patch_and_gloo(
    found: dict[str, Any], level: str, words: str
) -> None:
    finding = software._horovod(found)
    assert finding.level == level
    assert words in finding.found


@pytest.mark.parametrize(("version", "level"), [("2.18.1", OK), ("2.17.0", WARNING)])
def test_a_tensorflow_that_is_not_tested_is_a_warning(version: str, level: str) -> None:
    assert software._tensorflow({"version": version, "gpus": 0}).level == level
