"""Jobs that earlier versions of this package have begun go on with this one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hvd_elastic_keras.common import files
from tests.harness.job import REPOSITORY, Job, assert_same_weights
from tests.old_jobs import train_wave

KEPT = sorted(path for path in (REPOSITORY / "tests" / "old_jobs").iterdir() if path.is_dir())
VERSIONS = [path.name for path in KEPT if (path / files.JOB).exists()]


def job_of_wave(directory: Path, *flags: str) -> Job:
    """A job of the model of the kept jobs, in a directory that holds the model."""
    directory.mkdir()
    model = shutil.copy(train_wave.__file__, directory)
    return Job(directory, *train_wave.FLAGS, *flags, command=(f"--model={model}",))


def test_a_job_of_each_version_is_kept() -> None:
    assert VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
def test_a_job_of_another_version_ends_as_if_nothing_had_happened(
    version: str, tmp_path: Path
) -> None:
    kept = REPOSITORY / "tests" / "old_jobs" / version
    step = max(int(path.name[5:]) for path in (kept / files.CHECKPOINTS).glob("step-*"))
    going_on = job_of_wave(tmp_path / "kept", "--report")
    shutil.copytree(kept, going_on.job_dir)
    assert f"stopped at step {step}: interrupted" in going_on.ctl("status")
    with going_on as job:
        job.finish()
        assert job.events("checkpoint_loaded")[-1]["step"] == step
        assert "interrupted" in job.ctl("explain")
        assert (job.job_dir / files.REPORT).exists()
        history = json.loads((job.job_dir / files.HISTORY).read_text())
        assert history["epoch"] == list(range(6))
        with job_of_wave(tmp_path / "new") as new:
            new.finish()
            assert_same_weights(job.weights(), new.weights())
            again = json.loads((new.job_dir / files.HISTORY).read_text())
    for name, values in again["history"].items():
        assert history["history"][name] == pytest.approx(values, abs=1e-4), name
