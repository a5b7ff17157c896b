"""Workers of a real job see the GPUs of their places, and are told that there are none here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.harness.job import REPOSITORY

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


def test_each_worker_sees_its_own_gpus_and_none_in_silence(tmp_path: Path) -> None:
    script, seen = tmp_path / "script.py", tmp_path / "seen"
    script.write_text(SCRIPT)
    seen.mkdir()
    flags = ["--num_workers=2", "--gpus_per_worker=2", f"--job_dir={tmp_path / 'job'}"]
    inherited = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    result = subprocess.run(
        [sys.executable, "-m", "hvd_elastic_keras.run", *flags, str(script), str(seen)],
        env={**inherited, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    found = {path.name: path.read_text() for path in seen.iterdir()}
    assert found == {"w0": "0,1 true", "w1": "2,3 true"}
    assert result.stdout.count("a worker sees 0 GPUs, and --gpus_per_worker=2 asks for more") == 1
