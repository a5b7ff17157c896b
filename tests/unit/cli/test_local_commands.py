"""`ctl env` prints what a report of a bug needs, and `ctl manifests` writes files to edit."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

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


def objects(files: list[str]) -> Iterator[dict[str, Any]]:
    for file in files:
        if Path(file).suffix == ".yaml":
            found = yaml.safe_load_all(Path(file).read_text())
            yield from (manifest for manifest in found if manifest["kind"] != "Kustomization")


def names_in(manifest: Any) -> Iterator[str]:
    """Yields all texts of a manifest that name something."""
    if isinstance(manifest, dict):
        for value in manifest.values():
            yield from names_in(value)
    elif isinstance(manifest, list):
        for value in manifest:
            yield from names_in(value)
    elif isinstance(manifest, str):
        yield manifest


def test_each_job_of_a_namespace_has_objects_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = {}
    for name in ("first", "second-1"):
        training = "--training=train.py --lr=0.1 '--text=a: #b'"
        flags = (f"--name={name}", "--image=here/mine:2", training)
        jobs[name] = [*objects(printed(capsys, "manifests", name, *flags).split())]
    shared = {("PersistentVolumeClaim", "elastic-jobs"), ("PrometheusRule", "elastic-jobs")}
    first, second = (
        {(o["kind"], o["metadata"]["name"]) for o in manifests} for manifests in jobs.values()
    )
    assert first & second == shared
    for name, manifests in jobs.items():
        own = [m for m in manifests if m["kind"] != "PersistentVolumeClaim"]
        texts = {text for manifest in own for text in names_in(manifest)}
        assert not [t for t in texts if re.search(r"(^|=)elastic(-(?!jobs)|$)", t)]
        assert {f"--join={name}-master:7000", f"--job_dir=/jobs/{name}"} <= texts
        assert {f"--job_name={name}", f"hvd-{name}-launcher", f"{name}-token"} <= texts
        assert {"here/mine:2", "--image=here/mine:2"} <= texts
        assert not {"--model=digits_cnn", "registry.example.com/my-training:1"} & texts
        started = {o["metadata"]["name"]: o["spec"] for o in manifests if o["kind"] == "Job"}
        for master in (f"{name}-master", f"{name}-launcher"):
            command = started[master]["template"]["spec"]["containers"][0]["command"]
            assert command[-3:] == ["train.py", "--lr=0.1", "--text=a: #b"]


def test_a_quotation_mark_that_is_missing_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    error = printed(capsys, "manifests", "--training=train.py 'a", code=2)
    assert (
        error == "error: --training=train.py 'a cannot be split into words: No closing quotation.\n"
    )


def test_a_name_that_yaml_reads_as_something_else_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "which YAML does not read as a name" in printed(capsys, "manifests", "--name=no", code=2)


def test_a_name_that_kubernetes_does_not_take_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = printed(capsys, "manifests", "--name=My_Job", code=2)
    assert "error: --name=My_Job was given, expected at most" in error
    assert not Path("deploy").exists()


def test_a_directory_that_cannot_be_made_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("deploy").write_text("a file")
    assert "error: deploy cannot be written: " in printed(capsys, "manifests", code=2)
