"""Workers whose trials of a model would end differently compute their steps alike."""

from __future__ import annotations

from pathlib import Path

from tests.harness.job import Job

MODEL = """
import os
import keras, numpy as np, tensorflow as tf

class Hinge(keras.layers.Layer):
    # A sum over examples, which is 0 or not for all of them, by the first weights of a worker.
    def call(self, x):
        self.add_loss(0.001 * keras.ops.sum(keras.ops.relu(x)))
        return x

def model():
    # As with weights that are not seeded.
    first = 50.0 if os.environ.get("HVD_ELASTIC_WORKER_ID") == "w0" else -50.0
    return keras.Sequential([
        keras.Input((4,)),
        keras.layers.Dense(3, bias_initializer=keras.initializers.Constant(first)),
        Hinge(),
        keras.layers.Dense(1),
    ])

def loss():
    return "mse"

def optimizer():
    return keras.optimizers.SGD(1e-3)

def dataset(split):
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    return x, x[:, :1]
"""


def test_workers_with_other_first_weights_compute_alike(tmp_path: Path) -> None:
    module = tmp_path / "model.py"
    module.write_text(MODEL)
    flags = ("--num_workers=2", "--epochs=2", "--global_batch_size=16", "--micro_batch_size=4")
    with Job(tmp_path, f"--model={module}", *flags, command=()) as job:
        job.finish()
        logs = [(job.job_dir / "logs" / f"w{n}.log").read_text() for n in range(2)]
    assert sum("goes by what another worker has found" in log for log in logs) == 1
