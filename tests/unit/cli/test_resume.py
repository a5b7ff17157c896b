"""`--resume` with further flags: what counts, and what is refused."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import hvd_elastic_keras.run  # noqa: F401 - defines the flags
from hvd_elastic_keras.cli import take_over
from hvd_elastic_keras.cli.flags import settings
from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.master.journal import Journal
from hvd_elastic_keras.master.machine.claims import Claims
from hvd_elastic_keras.master.machine.decisions import decisions_of
from tests.unit.master.membership_driver import running_job


@pytest.fixture
def job_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job directory in a directory with two scripts, which is the current one."""
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "other.py"):
        Path(name).touch()
    path = tmp_path / "job"
    path.mkdir()
    return path


class Replaced(BaseException):
    """Stands for the end of this process, whose place the command takes."""


def resume(
    monkeypatch: pytest.MonkeyPatch, job_dir: Path, before: list[str], *typed: str
) -> list[str]:
    """Returns the command that `--resume` starts for a job of an earlier command."""
    journal = Journal(job_dir / files.JOURNAL)
    journal.write(1, tuple(before), decisions_of(running_job(1).state, Claims(), {}))
    journal.close()
    commands = []

    def execv(_program: str, command: list[str]) -> None:
        commands.append(command)
        raise Replaced

    monkeypatch.setattr(os, "execv", execv)
    words = ["--resume", f"--job_dir={job_dir}", *typed]
    with pytest.raises(Replaced):
        take_over.start_again(job_dir, settings.resolved(words))
    assert commands[0][:4] == [
        sys.executable,
        "-m",
        "hvd_elastic_keras.run",
        f"--job_dir={job_dir}",
    ]
    return commands[0][4:]


@pytest.mark.parametrize(
    ("before", "typed", "words"),
    [
        (["--epochs=2"], [], ["--epochs=2"]),
        (["--epochs=2", "--seed=1"], ["--epochs=3"], ["--seed=1", "--epochs=3"]),
        (["--seed=2", "x.py", "--seed=9"], ["--tls"], ["--seed=2", "--tls", "x.py", "--seed=9"]),
        (["--epochs=2", "train.py"], ["train.py"], ["--epochs=2", "train.py"]),
        (["--epochs=2"], ["--model=resnet50"], ["--epochs=2"]),
        (["--model=mnist"], ["--model=mnist"], ["--model=mnist"]),
    ],
)
def test_typed_flags_count_and_the_rest_stays(
    job_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: list[str],
    typed: list[str],
    words: list[str],
) -> None:
    assert resume(monkeypatch, job_dir, before, *typed) == words


@pytest.mark.parametrize(
    ("before", "typed"),
    [
        ([], "--model=mnist"),
        (["--model=mnist"], "--model=resnet50"),
        (["train.py"], "--model=resnet50"),
        (["train.py"], "other.py"),
        (["--model=mnist"], "train.py"),
    ],
)
def test_another_model_or_script_is_refused(
    job_dir: Path, monkeypatch: pytest.MonkeyPatch, before: list[str], typed: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"{typed} was given together with --resume"):
        resume(monkeypatch, job_dir, before, typed)
