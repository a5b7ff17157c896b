"""A script's saves: only those of rank 0 take effect, and what cannot be saved does no harm."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.harness.faults import Fault
from tests.harness.job import REPOSITORY, Job, read_weights

SAVING_SCRIPT = REPOSITORY / "tests" / "harness" / "saving_script.py"

MODEL_THAT_CANNOT_BE_SAVED = """
import json
import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np

from hvd_elastic_keras import ElasticCallback

class Autoencoder(keras.Model):
    def __init__(self, encoder, decoder, scale):
        super().__init__()
        self.encoder, self.decoder, self.scale = encoder, decoder, scale

    def call(self, x):
        return self.decoder(self.scale(self.encoder(x)))

keras.utils.set_random_seed(1)
model = Autoencoder(keras.layers.Dense(3, "relu"), keras.layers.Dense(6), lambda x: 2 * x)
model.compile(keras.optimizers.SGD(0.1), "mse")
x = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")

def fit(epochs):
    return model.fit(
        x, x, batch_size=16, epochs=epochs, callbacks=[ElasticCallback(micro_batch_size=4)]
    )

first = fit(2)
worker = os.environ.get("HVD_ELASTIC_WORKER_ID", "alone")
directory = Path(sys.argv[1])
if worker == "w1":
    os.kill(os.getpid(), signal.SIGKILL)
second = fit(3)
weights = [w.tolist() for w in model.get_weights()]
losses = first.history["loss"] + second.history["loss"]
(directory / f"{worker}.json").write_text(json.dumps([losses, weights]))
"""


@pytest.mark.slow
def test_a_model_that_cannot_be_saved_is_trained_to_the_end_and_its_weights_are_kept(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(MODEL_THAT_CANNOT_BE_SAVED)
    with Job(tmp_path, "--num_workers=2", command=(str(script), str(tmp_path))) as job:
        job.finish()
        text = "warning: model.keras could not be saved, its weights are in model.weights.h5: "
        lines = [line for line in job.output.splitlines() if text in line]
        assert len(lines) == 2  # one for each training
        assert "NotImplementedError: Object Autoencoder was created by passing" in lines[0]
        assert "Traceback" not in job.output
        kept = read_weights(job.job_dir / "training-2" / "model.weights.h5", tmp_path)
        assert not list(job.job_dir.rglob("model.keras"))
        # w2 came too late for the first training, and has taken its result from the files.
        results = {w: json.loads((tmp_path / f"{w}.json").read_text()) for w in ("w0", "w2")}
        assert results["w2"] == results["w0"]
        assert len(results["w0"][0]) == 5
        np.testing.assert_allclose(kept["encoder/vars/0"], results["w0"][1][0], rtol=1e-6)


def test_each_file_of_a_script_is_written_once_although_two_roots_are_killed_over_it(
    tmp_path: Path,
) -> None:
    plan = [Fault("saving", "saving epoch1", 0), Fault("block", "block", 0)]
    command = (str(SAVING_SCRIPT), str(tmp_path))
    with Job(tmp_path, "--num_workers=3", plan=plan, command=command) as job:
        job.finish()
        assert all(job.plan.happened(f.name) for f in plan)
        first, second = (job.worker_that_had(f.name) for f in plan)
        assert first == "w0"
        written = [line.split() for line in (tmp_path / "written.txt").read_text().splitlines()]
        counts = Counter(moment for _, moment in written)
        last = job.events("round_running")[-1]["members"]
        # A model is written twice if the first worker was killed in the middle, or if there are two
        # files.
        assert counts["epoch1"] == 2
        assert (counts["epoch0"], counts["epoch2"]) == (1, 1)
        assert counts["after"] == 2
        assert (counts["before"], counts["named"], counts["end"]) == (1, 1, 1)
        assert counts["training"] == 5  # `ModelCheckpoint`, and the results of two trainings
        assert len(list(tmp_path.glob("own-*.keras"))) == counts["own"] >= len(last)
        block = (tmp_path / "block.txt").read_text().split("\n")
        assert block[0] == f"begun by {second}"
        assert len(block) == 4
        assert block[2] == block[1].replace("begun", "ended")
        assert sorted(p.name for p in tmp_path.glob(".*")) == []
        # Each line is shown once, whichever worker's output was shown, and is in every worker's
        # log.
        for line in ("this script begins", "between two trainings", "this script ends"):
            assert job.output.count(line) == 1
        for worker in last:
            assert "this script begins" in (job.job_dir / "logs" / f"{worker}.log").read_text()
