"""`run --dry_run` as a user calls it shows the plan of the job that follows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import keras
from ml_collections import ConfigDict

from model_zoo import digits_cnn
from tests.harness.job import Job
from tests.harness.plain_module import MODEL

ROOT = Path(__file__).resolve().parents[2]


def dry_run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `run --dry_run` in a directory."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "hvd_elastic_keras.run", "--dry_run", *arguments],
        capture_output=True,
        text=True,
        cwd=directory,
        check=False,
        timeout=250,
    )


def of_the_step(output: str) -> list[str]:
    """The lines of `--explain_step`."""
    lines = [line.removeprefix("[elastic] ") for line in output.splitlines()]
    return [line for line in lines if line.startswith("step: ")]


def test_the_plan_of_a_model_is_what_the_job_then_does(tmp_path: Path) -> None:
    model = tmp_path / "my_model.py"
    model.write_text(MODEL)
    (tmp_path / "job.toml").write_text("global_batch_size = 24\n")
    config = f"--config={tmp_path / 'job.toml'}"
    flags = ["--num_workers=2", "--epochs=3", config, "--micro_batch_size=8", "--explain_step"]
    planned = dry_run(tmp_path, f"--model={model}", *flags)
    assert planned.returncode == 0, planned.stderr
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == [
        "job.toml",
        "my_model.py",
    ]
    assert "steps: 3 steps per epoch, 9 in all" in planned.stdout
    assert "micro-batches per worker and step: 2+1" in planned.stdout
    explained = of_the_step(planned.stdout)
    assert explained[0].endswith(" in 1 round")
    with Job(tmp_path, *flags, command=(f"--model={model}",)) as job:
        job.finish()
        assert "finished after 9 steps" in job.output
        assert of_the_step(job.output) == explained
        assert job.events("round_running")[0]["micro_batches"] == [2, 1]
        before = {path: path.read_bytes() for path in job.job_dir.rglob("*") if path.is_file()}
        again = dry_run(tmp_path, "--resume", f"--job_dir={job.job_dir}")
        changed = dry_run(
            tmp_path, "--resume", f"--job_dir={job.job_dir}", "--epochs=7", f"--model={model}"
        )
        other = dry_run(tmp_path, "--resume", f"--job_dir={job.job_dir}", "--model=resnet50")
        after = {path: path.read_bytes() for path in job.job_dir.rglob("*") if path.is_file()}
    assert "set: epochs=7 (command line)" in changed.stdout
    assert f"set: global_batch_size=24 ({tmp_path / 'job.toml'}, when" in changed.stdout
    assert other.returncode == 2
    assert other.stderr.startswith("error: --model=resnet50 was given together with --resume")
    assert again.returncode == 0, again.stderr
    assert "going on from the checkpoint of step 9" in again.stdout
    started = "when the job was started)"
    assert f"set: global_batch_size=24 ({tmp_path / 'job.toml'}, {started}" in again.stdout
    assert f"set: epochs=3 (command line, {started}" in again.stdout
    assert f"set: job_dir={job.job_dir} (command line)" in again.stdout
    assert after == before


def test_a_model_that_would_be_refused_is_refused(tmp_path: Path) -> None:
    model = tmp_path / "my_model.py"
    model.write_text(MODEL.replace("Input((4,))", "Input((5,))"))
    planned = dry_run(tmp_path, f"--model={model}")
    assert planned.returncode == 2
    assert "The model does not accept the data" in planned.stderr
    assert not (tmp_path / "jobs").exists()


def test_a_script_is_not_run(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("open('it_ran', 'w')\n")
    planned = dry_run(tmp_path, "--num_workers=3", str(script))
    assert planned.returncode == 0, planned.stderr
    assert "workers: 3 at the start" in planned.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def test_a_joiner_has_no_plan(tmp_path: Path) -> None:
    planned = dry_run(tmp_path, "--join=127.0.0.1:1")
    assert planned.returncode != 0
    assert "--dry_run was given together with --join" in planned.stderr


def test_the_plan_of_predictions_has_what_counts_for_them(tmp_path: Path) -> None:
    keras.utils.set_random_seed(1)
    digits_cnn.model(ConfigDict()).save_weights(tmp_path / "some.weights.h5")
    arguments = ["--model=digits_cnn", "--job=predict", "--checkpoint=some.weights.h5"]
    planned = dry_run(tmp_path, *arguments, "--split=validation", "--output=out")
    assert planned.returncode == 0, planned.stderr
    assert 'predict 360 examples of dataset("validation") in 1 step' in planned.stdout
    assert "predictions: to out" in planned.stdout
    assert "epochs" not in planned.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["some.weights.h5"]
