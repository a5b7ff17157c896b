"""Each worker has its own GPUs, or there is no training. This machine has no GPUs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.job import LIMIT_S, Job

SCRIPT = """
import os, sys, keras, numpy as np
from hvd_elastic_keras import ElasticCallback

names = ("CUDA_VISIBLE_DEVICES", "TF_FORCE_GPU_ALLOW_GROWTH")
seen = " ".join(str(os.environ.get(name)) for name in names)
with open(f"{sys.argv[1]}/{os.environ['HVD_ELASTIC_WORKER_ID']}", "w") as file:
    file.write(seen)
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((8, 2)), np.ones((8, 1)), callbacks=[ElasticCallback()], verbose=2)
"""
LOOP = """
import sys
import keras
from hvd_elastic_keras import elastic

@elastic.run
def train(state):
    open(f"{sys.argv[1]}/trained", "w").close()

train(elastic.ElasticState(model=keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])))
"""


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a directory for the notes of workers."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "seen").mkdir()
    return tmp_path / "seen"


def test_a_host_that_has_too_few_gpus_starts_no_worker(tmp_path: Path, seen: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = (str(tmp_path / "script.py"), str(seen))
    with Job(tmp_path, "--num_workers=2", "--gpus_per_worker=2", command=command) as job:
        assert job.process.wait(LIMIT_S) == 2
        assert "the 2 workers of this host need 4 GPUs, but it has 0" in job.output
    assert list(seen.iterdir()) == []


@pytest.mark.parametrize("script", [SCRIPT, LOOP], ids=["fit", "elastic_run"])
def test_a_worker_of_another_host_that_sees_too_few_gpus_ends_a_job_that_has_not_begun(
    tmp_path: Path, seen: Path, script: str
) -> None:
    (tmp_path / "script.py").write_text(script)
    flags = ("--master_only", "--gpus_per_worker=2")
    with Job(tmp_path, *flags, command=(str(tmp_path / "script.py"), str(seen))) as job:
        job.wait_for("job_started")
        with subprocess.Popen(
            [sys.executable, "-m", "hvd_elastic_keras.run", f"--join={job.job_dir}"],
        ) as joiner:
            try:
                assert job.process.wait(LIMIT_S) == 2, job.report()
                assert joiner.wait(LIMIT_S) == 93
            finally:
                joiner.kill()
        assert "sees 0 GPUs, but --gpus_per_worker=2 was given" in job.output
    noted = {path.name: path.read_text() for path in seen.iterdir()}
    assert noted == ({"w0": "0,1 true"} if script == SCRIPT else {})
