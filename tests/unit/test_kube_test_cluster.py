"""The script that builds a Kubernetes for tests: what it looks for, and what it says."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "kube_test_cluster"
SPEC = spec_from_loader("kube_test_cluster", SourceFileLoader("kube_test_cluster", str(SCRIPT)))
assert SPEC is not None
assert SPEC.loader is not None
script = module_from_spec(SPEC)
SPEC.loader.exec_module(script)

DEB822 = "Types: deb\nURIs: http://deb.debian.org/debian\nSuites: bookworm\nComponents: main\n"


def run(cache: Path, *arguments: str, path: str = os.environ["PATH"]) -> tuple[int, str, str]:
    """Exit code, output and errors."""
    ended = subprocess.run(
        [sys.executable, SCRIPT, *arguments],
        env={"XDG_CACHE_HOME": str(cache), "PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ended.returncode, ended.stdout, ended.stderr


def fill(folder: Path) -> None:
    """Puts something with the names of the programs there."""
    folder.mkdir(parents=True)
    for name in (script.ETCD, *script.PROGRAMS):
        (folder / name).touch(mode=0o755)


def test_a_check_finds_the_programs_only_when_all_are_there(tmp_path: Path) -> None:
    folder = script.folder_of({"XDG_CACHE_HOME": str(tmp_path)})
    code, _, errors = run(tmp_path, "--check")
    assert code == 1
    assert f"not in {folder}: run scripts/kube_test_cluster" in errors
    fill(folder)
    assert run(tmp_path, "--check") == (0, f"{folder}\n", "")
    assert run(tmp_path) == (0, f"{folder}\n", ""), "programs from an earlier run are used again"
    (folder / script.ETCD).unlink()
    assert run(tmp_path, "--check")[0] == 1


def test_a_system_that_cannot_build_them_hears_what_is_missing(tmp_path: Path) -> None:
    code, _, errors = run(tmp_path, path=str(tmp_path))
    assert code == 1
    assert "apt-get" in errors
    assert "which are not here" in errors
    assert errors.count("\n") == 1


def test_a_command_that_fails_is_told_with_its_error(tmp_path: Path) -> None:
    build = script.Build(tmp_path, tmp_path / "log", os.environ)
    with pytest.raises(script.BuildError, match=r"sh has failed: E: no network\. Details: .*log"):
        build._call("trying", "sh", "-c", "echo begun; echo E: no network.; echo end; exit 100")


def test_a_build_that_takes_too_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "LIMIT_S", 0.0)
    build = script.Build(tmp_path, tmp_path / "log", os.environ)
    with pytest.raises(script.BuildError, match="not done within"):
        build._call("waiting", "sleep", "1000")


def test_a_build_says_what_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "TELL_EVERY_S", 0.01)
    said = tmp_path / "said"
    os.mkfifo(said)

    def say(message: str) -> None:
        print(message)
        with contextlib.suppress(OSError):  # the command does not read yet, or no more
            os.close(os.open(said, os.O_WRONLY | os.O_NONBLOCK))

    monkeypatch.setattr(script, "say", say)
    script.Build(tmp_path, tmp_path / "log", os.environ)._call("compiling", "cat", "said")
    assert "compiling: 0 s so far" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (DEB822, DEB822.replace("deb\n", "deb deb-src\n", 1)),
        (
            "deb http://x bookworm main\n",
            "deb http://x bookworm main\ndeb-src http://x bookworm main\n",
        ),
        ("# deb http://x\n", "# deb http://x\n"),
    ],
)
def test_sources_of_programs_become_sources_of_both(given: str, expected: str) -> None:
    assert script.source_entries(given) == expected
