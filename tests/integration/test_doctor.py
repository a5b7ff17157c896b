"""`doctor` with real installations that are broken, and with one that is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_elastic_keras.cli.checks import checkup, software
from hvd_elastic_keras.cli.checks.finding import OK, PROBLEM, WARNING

ROOT = Path(__file__).resolve().parents[2]
WAITS = "import threading\nthreading.Event().wait()\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a directory in which started processes look for modules first."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")
    return tmp_path


def doctor(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hvd_elastic_keras.doctor", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=250
    )


def fake(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_nothing_stands_in_the_way_of_a_job_where_the_tests_run() -> None:
    result = doctor("--json")
    found = {finding["check"]: finding for finding in json.loads(result.stdout)}
    for check in ("TensorFlow", "Keras", "Horovod", "GPUs", "two workers", "port", "packages"):
        assert found[check]["level"] == OK, found[check]
    problems = [finding for finding in found.values() if finding["level"] == PROBLEM]
    assert (result.returncode, problems) == (0, [])


def test_a_tensorflow_that_the_processor_cannot_run_is_a_line_and_no_traceback(site: Path) -> None:
    fake(site / "tensorflow.py", "import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n")
    result = doctor()
    lines = [line for line in result.stdout.splitlines() if line.startswith(PROBLEM)]
    assert result.returncode == 1
    assert len(lines) == 1
    assert "TensorFlow" in lines[0]
    assert "SIGILL, an instruction that this processor lacks" in lines[0]
    assert "two workers     not tried" in result.stdout
    assert "Traceback" not in result.stdout + result.stderr


def test_a_horovod_that_cannot_be_imported_is_named_with_the_remedy(site: Path) -> None:
    fake(site / "horovod" / "__init__.py", "raise ImportError('undefined symbol: _ZN10tensorflow')")
    tensorflow, keras, horovod = software.big_three()
    assert (tensorflow.level, keras.level, horovod.level) == (OK, OK, PROBLEM)
    assert horovod.found == "ImportError: undefined symbol: _ZN10tensorflow"
    assert horovod.remedy == f"Run {ROOT / 'scripts' / 'setup'}"


def test_a_horovod_without_the_patch_is_a_warning(site: Path) -> None:
    metadata = "Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n"
    fake(site / "horovod-0.28.1.dist-info" / "METADATA", metadata)
    horovod = list(software.big_three())[-1]
    assert (horovod.check, horovod.level) == ("Horovod", WARNING)
    assert "0.28.1+hvdelastic" in horovod.expected


def test_another_backend_of_keras_is_a_problem(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "numpy")
    keras = list(software.big_three())[-1]
    assert (keras.check, keras.level) == ("Keras", PROBLEM)
    assert "KERAS_BACKEND=tensorflow" in keras.found


def test_an_import_that_does_not_end_is_a_problem(site: Path) -> None:
    fake(site / "tensorflow.py", WAITS)
    (tensorflow,) = software.big_three(timeout_s=2)
    assert tensorflow.level == PROBLEM
    assert "has not ended after 2 s" in tensorflow.found


def test_two_workers_that_do_not_meet_are_killed_and_told_of(site: Path) -> None:
    note = site / "pids"
    text = f"import os\nwith open({str(note)!r}, 'a') as f: f.write(f'{{os.getpid()}}\\n')\n"
    fake(site / "horovod" / "__init__.py", "")
    fake(site / "horovod" / "tensorflow.py", text + WAITS)
    finding = checkup.two_workers(timeout_s=10)
    assert finding.level == PROBLEM
    assert "have not met within 10 s" in finding.found
    pids = note.read_text().split()
    assert len(pids) == 2
    assert [pid for pid in pids if Path("/proc", pid).exists()] == []


def test_two_workers_over_an_interface_that_is_not_there_are_a_problem() -> None:
    finding = checkup.two_workers(interface="nosuch0")
    assert finding.level == PROBLEM
    assert "Horovod could not be initialised" in finding.found


def test_a_package_that_the_command_line_itself_needs_is_a_line_and_no_traceback(
    site: Path,
) -> None:
    fake(site / "msgspec.py", "raise ImportError('libstdc++.so.6: cannot open', name='msgspec')")
    result = doctor()
    assert result.returncode == 1
    assert result.stdout.startswith("problem  packages        msgspec cannot be imported: libstdc")
    assert len(result.stdout.splitlines()) == 1
    assert result.stderr == ""
