"""`ctl env` prints what a report of a bug needs, and `ctl manifests` copies files to edit."""

from __future__ import annotations

import types
from pathlib import Path

import pytest

from hvd_elastic_keras import ctl
from hvd_elastic_keras.cli import local_commands
from hvd_elastic_keras.common import versions

VARIABLES = {
    "HVD_ELASTIC_RUN_AUDIT": "true",
    "HVD_ELASTIC_TOKEN": "t0p",
    "TF_API_KEY": "t0p",
    "DATABASE": "t0p",
    "TF_PASSPHRASE": "t0p",
    "TF_empty": "",
}


@pytest.fixture(autouse=True)
def _directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as ended:
        ctl.main(arguments)
    assert ended.value.code == code
    output = capsys.readouterr()
    return output.err if code else output.out


def test_a_report_has_versions_and_variables_and_no_secrets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    text = printed(capsys, "env")
    found = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert versions.installed().items() <= found.items()
    assert found["HVD_ELASTIC_RUN_AUDIT"] == "true"
    assert found["TF_empty"] == "(empty)"
    assert found["HVD_ELASTIC_TOKEN"] == found["TF_API_KEY"] == "(set)"
    assert "t0p" not in text
    assert "job" not in found


def test_a_job_without_a_journal_is_reported_as_far_as_it_is_known(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    job, course = printed(capsys, "env", f"--job_dir={tmp_path / 'none'}").splitlines()[-2:]
    assert job.split() == ["job", str(tmp_path / "none")]
    assert course.split(maxsplit=1) == ["course", "0 rounds; has not ended"]


@pytest.mark.parametrize(
    ("command", "flags", "script"),
    [
        ("--model a.py --num_workers=3 --audit", "--model a.py --num_workers=3 --audit", "none"),
        ("--audit --module own.train --epochs=5 --key=t0p", "--audit --module", "own.train"),
        ("--num_workers 2 -- train.py --key=t0p", "--num_workers 2", "train.py"),
        ("train.py --seed=t0p", "none", "train.py"),
    ],
)
def test_of_a_command_the_flags_are_reported_and_not_the_arguments_of_the_script(
    command: str,
    flags: str,
    script: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = types.SimpleNamespace(command=tuple(command.split()))
    monkeypatch.setattr(local_commands, "Journal", lambda path: types.SimpleNamespace(last=entry))
    text = printed(capsys, "env", "--job_dir=job")
    found = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert (found["flags"], found["script"]) == (flags, script)
    assert "t0p" not in text


def test_the_files_of_the_package_are_copied_once(capsys: pytest.CaptureFixture[str]) -> None:
    names = printed(capsys, "manifests").split()
    expected = [path for path in local_commands.DEPLOY.glob("*/*") if path.is_file()]
    assert len(names) == len(expected) > 9
    for name in names:
        source = local_commands.DEPLOY / Path(name).relative_to("deploy")
        assert Path(name).read_bytes() == source.read_bytes()
    Path("deploy", "slurm", "mine.sbatch").write_text("mine")
    assert printed(capsys, "manifests").split() == names


def test_files_that_somebody_has_edited_stay(capsys: pytest.CaptureFixture[str]) -> None:
    edited = Path(printed(capsys, "manifests", "cluster").split()[0])
    edited.write_text("edited")
    Path("cluster", "slurm", "master.sbatch").unlink()
    error = printed(capsys, "manifests", "cluster", code=2)
    assert f"error: {edited} would be overwritten" in error
    assert edited.read_text() == "edited"
    assert not Path("cluster", "slurm", "master.sbatch").exists()


def test_a_directory_that_cannot_be_made_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("deploy").write_text("a file")
    assert "error: deploy cannot be written: " in printed(capsys, "manifests", code=2)
