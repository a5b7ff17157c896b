"""`--dry_run`: what the plan says, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_keras.cli import dry_run, job_directory, plan
from hvd_elastic_keras.cli.dry_run import check_same_kind
from hvd_elastic_keras.cli.job_request import JobRequest, MasterRequest
from hvd_elastic_keras.common import batch_plan, files, predictions
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.settings.job_config import JobConfig
from hvd_elastic_keras.settings.job_options import JobOptions
from hvd_elastic_keras.settings.job_spec import EVALUATE, PREDICT, JobSpec
from hvd_elastic_keras.settings.training_config import TrainingConfig
from hvd_elastic_keras.state.checkpoint import manifest

FOUND: dict[str, Any] = {
    "parameters": 1000,
    "num_examples": 100,
    "num_validation_examples": 0,
    "steps_per_epoch": 12,
    "checkpoint_step": None,
}


def request_of(job_dir: Path, training: dict[str, Any] | None = None, **job: int) -> JobRequest:
    """A job of a model, whose check has found micro-batches of 16."""
    config = TrainingConfig(**{"global_batch_size": 128, "epochs": 3, **(training or {})})
    spec = JobSpec(config, "nowhere.py")
    return JobRequest(JobConfig(**job), spec, [], job_dir, "nowhere", found_micro_batch_size=16)


def script_request(tmp_path: Path, text: str = "print(1)\n", **changes: Any) -> JobRequest:
    script = tmp_path / "script.py"
    script.write_text(text)
    request = JobRequest(JobConfig(), None, [str(script), "--x=1"], tmp_path / "a" / "b", "script")
    return dataclasses.replace(request, **changes)


def line_of(lines: list[str], name: str) -> str:
    (found,) = [line for line in lines if line.startswith(f"{name}: ")]
    return found.removeprefix(f"{name}: ")


@pytest.mark.parametrize(
    ("training", "steps"),
    [
        ({}, "12 steps per epoch, 36 in all"),
        ({"epochs": None, "steps": 30}, "12 steps per epoch, 30 in all"),
        ({"epochs": 2, "steps": 30}, "12 steps per epoch, 24 in all"),
        (
            {"batch": "per_worker", "batch_size_per_worker": 16},
            "6 steps per epoch, 18 in all, with the workers of the start",
        ),
    ],
)
def test_the_plan_has_the_steps_of_the_schedule(
    training: dict[str, Any], steps: str, tmp_path: Path
) -> None:
    lines = list(plan.whole_plan(request_of(tmp_path, training), FOUND))
    assert line_of(lines, "steps") == steps


def test_the_plan_has_the_shares_that_the_job_begins_with(tmp_path: Path) -> None:
    lines = list(plan.whole_plan(request_of(tmp_path, num_workers=3), FOUND))
    shares = batch_plan.describe_shares(batch_plan.shares_of(3, 8))
    assert shares == "3+3+2"
    expected = f"{shares}; with 2 workers 4+4; with 4 workers 2+2+2+2"
    assert line_of(lines, "micro-batches per worker and step") == expected


def test_spares_have_no_share(tmp_path: Path) -> None:
    lines = list(plan.whole_plan(request_of(tmp_path, num_workers=10), FOUND))
    line = line_of(lines, "micro-batches per worker and step")
    assert line == "8x1; with 7 workers 1x2+6x1"
    assert any("of which 2 will wait as spares" in line for line in lines)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "every epoch, at the end (the newest 2 are kept)"),
        (
            {"checkpoint_every_n_epochs": 0, "checkpoint_every_n_steps": 5, "keep_checkpoints": 4},
            "every 5 steps, at the end (the newest 4 are kept)",
        ),
        (
            {"checkpoint_every_minutes": 1.5},
            "every epoch, every 1.5 minutes, at the end (the newest 2 are kept)",
        ),
    ],
)
def test_the_plan_says_when_checkpoints_are_written(
    options: dict[str, Any], text: str, tmp_path: Path
) -> None:
    request = dataclasses.replace(request_of(tmp_path), asked=JobOptions(otherwise=options))
    lines = list(plan.whole_plan(request, FOUND))
    assert line_of(lines, "checkpoints") == f"{text}, to {tmp_path / files.CHECKPOINTS}"


def test_the_plan_says_what_the_job_would_go_on_from(tmp_path: Path) -> None:
    new = list(plan.whole_plan(request_of(tmp_path / "new"), FOUND))
    assert line_of(new, "job directory") == f"{tmp_path / 'new'}, a new one"
    lines = list(plan.whole_plan(request_of(tmp_path), {**FOUND, "checkpoint_step": 24}))
    assert line_of(lines, "job directory").endswith("going on from the checkpoint of step 24")


def test_a_script_goes_on_from_the_newest_checkpoint_that_is_there(tmp_path: Path) -> None:
    for step in (4, 12):
        checkpoint = tmp_path / files.CHECKPOINTS / f"step-{step:08d}"
        checkpoint.mkdir(parents=True)
        manifest.write(checkpoint, version=3, term=1)
    request = script_request(tmp_path, job_dir=tmp_path)
    lines = list(plan.whole_plan(request, None))
    assert line_of(lines, "job directory").endswith("the checkpoint of step 12")


def test_a_dry_run_of_a_script_prints_its_plan_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = script_request(tmp_path, master=MasterRequest(tls=True))
    assert asyncio.run(dry_run.dry_run(request)) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]
    output = capsys.readouterr().out
    assert "script.py --x=1; batch, steps and model are its own" in output
    assert "nothing has been started" in output


def test_an_old_job_directory_is_as_before(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    (old / "mine.txt").write_text("kept")
    asyncio.run(dry_run.dry_run(script_request(tmp_path, job_dir=old)))
    assert [path.name for path in old.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("kept", [files.LOGS, files.LOCK])
def test_what_a_job_has_left_there_stays(kept: str, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    (old / kept).mkdir() if kept == files.LOGS else (old / kept).touch()
    dry_run.check_directory(old)
    assert [path.name for path in old.iterdir()] == [kept]


def test_a_directory_in_which_a_job_runs_is_refused_and_left_alone(tmp_path: Path) -> None:
    with job_directory.held(tmp_path / "job") as begin:
        begin()
        before = sorted(path.name for path in (tmp_path / "job").iterdir())
        with pytest.raises(ConfigurationError, match="A job is running"):
            dry_run.check_directory(tmp_path / "job")
        assert sorted(path.name for path in (tmp_path / "job").iterdir()) == before


def test_a_directory_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="--job_dir=/proc/x/y cannot be used"):
        dry_run.check_directory(Path("/proc/x/y"))


def test_a_script_that_python_cannot_read_is_refused(tmp_path: Path) -> None:
    request = script_request(tmp_path, "def f(:\n")
    with pytest.raises(ConfigurationError, match=r"script\.py cannot be run: .*line 1"):
        asyncio.run(dry_run.dry_run(request))
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def test_an_address_at_which_nobody_can_listen_is_refused() -> None:
    dry_run.check_address(MasterRequest())
    with pytest.raises(ConfigurationError, match=r"--bind=192\.0\.2\.77"):
        dry_run.check_address(MasterRequest("192.0.2.77"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"--port={port} .* uses it"):
            dry_run.check_address(MasterRequest(port=port))


def test_a_network_interface_that_is_not_there_is_refused(tmp_path: Path) -> None:
    request = script_request(tmp_path, network_interface="nosuch0")
    with pytest.raises(ConfigurationError, match=r"--network_interface=nosuch0"):
        asyncio.run(dry_run.dry_run(request))


def inference_request(tmp_path: Path, job: str) -> JobRequest:
    output = str(tmp_path / "output") if job == PREDICT else ""
    spec = JobSpec(
        TrainingConfig(global_batch_size=128), "nowhere.py", job=job, split="test", output=output
    )
    request = request_of(tmp_path / "job", num_workers=3)
    return dataclasses.replace(request, spec=spec)


@pytest.mark.parametrize(
    ("job", "leaves"), [(EVALUATE, "results: to "), (PREDICT, "predictions: to ")]
)
def test_the_plan_of_a_job_that_does_not_train(job: str, leaves: str, tmp_path: Path) -> None:
    request = inference_request(tmp_path, job)
    lines = list(plan.whole_plan(request, {**FOUND, "weights": str(tmp_path / "a.keras")}))
    assert lines[0] == f'nowhere: {job} 100 examples of dataset("test") in 12 steps'
    assert line_of(lines, "weights") == f"{tmp_path}/a.keras, 1,000 parameters"
    assert line_of(lines, "micro-batches per worker and step").startswith("3+3+2")
    assert any(line.startswith(leaves) for line in lines)
    assert not any(line.startswith(("steps: ", "checkpoints: ")) for line in lines)


def test_the_plan_says_whether_predictions_are_gone_on_with(tmp_path: Path) -> None:
    predictions.begin(tmp_path / "output", {})
    lines = list(plan.whole_plan(inference_request(tmp_path, PREDICT), {**FOUND, "weights": "a"}))
    assert line_of(lines, "predictions").endswith("output, which is gone on with")


def test_a_directory_of_another_kind_of_job_is_refused(tmp_path: Path) -> None:
    spec = JobSpec(TrainingConfig(), "nowhere.py")
    check_same_kind(tmp_path, spec)
    spec.save(tmp_path / files.JOB)
    check_same_kind(tmp_path, spec)
    with pytest.raises(ConfigurationError, match=r"--job=predict .* --job=train"):
        check_same_kind(tmp_path, dataclasses.replace(spec, job=PREDICT))
