"""Workers whose trials of a model would end differently compute their steps alike."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.harness.job import LIMIT_S, REPOSITORY, Job

HINGE = """
import os, sys, time
import keras, numpy as np, tensorflow as tf

class Hinge(keras.layers.Layer):
    # A sum over examples, which is 0 or not for all of them, by the weights.
    def call(self, x):
        self.add_loss(0.1 * keras.ops.sum(keras.ops.relu(x)))
        return x

def network(first):
    return keras.Sequential([
        keras.Input((4,)),
        keras.layers.Dense(3, bias_initializer=keras.initializers.Constant(first)),
        Hinge(),
        keras.layers.Dense(1, kernel_initializer="zeros"),
    ])

x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
y = x[:, :1]
"""
MODULE = """
def model():
    # As with weights that are not seeded.
    return network(5.0 if os.environ.get("HVD_ELASTIC_WORKER_ID") == "w0" else -5.0)

def loss():
    return "mse"

def optimizer():
    return keras.optimizers.SGD(1e-4)

def dataset(split):
    return x, y
"""
SCRIPT = """
from hvd_elastic_keras import ElasticCallback
rank = os.environ.get("HOROVOD_RANK", "0")
model = network(5.0 if rank == "0" else -5.0)
model.compile(keras.optimizers.SGD(1e-4), "mse")
callback = ElasticCallback(micro_batch_size=4)
model.fit(x, y, batch_size=16, epochs=2, verbose=0, callbacks=[callback])
np.save(f"{sys.argv[1]}-{rank}.npy", model.get_weights()[1])
"""
LOOP = """
import hvd_elastic_keras.horovod as hvd
from hvd_elastic_keras import ElasticCallback

hvd.init()
model = network(-5.0)
model.compile(keras.optimizers.SGD(1e-4), "mse")
state = hvd.elastic.KerasState(model)
sizes = []
state.register_reset_callbacks([lambda: sizes.append(hvd.size())])

class Wakes(keras.callbacks.Callback):
    # From the second epoch on the sum is there; with two workers the training ends.
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.model.layers[0].bias.assign([5.0] * 3)
            print("awake", flush=True)

    def on_epoch_end(self, epoch, logs=None):
        time.sleep(0.01)
        self.model.stop_training = hvd.size() == 2

@hvd.elastic.run
def train(state):
    callbacks = [ElasticCallback(micro_batch_size=4), Wakes()]
    model.fit(x, y, batch_size=16, epochs=100000, verbose=0, callbacks=callbacks)

train(state)
"""


def test_workers_with_other_first_weights_compute_alike(tmp_path: Path) -> None:
    module = tmp_path / "model.py"
    module.write_text(HINGE + MODULE)
    flags = ("--num_workers=2", "--epochs=2", "--global_batch_size=16", "--micro_batch_size=4")
    with Job(tmp_path, f"--model={module}", *flags, command=()) as job:
        job.finish()
        logs = [(job.job_dir / "logs" / f"w{n}.log").read_text() for n in range(2)]
    assert sum("goes by what another worker has found" in log for log in logs) == 1


def test_processes_of_horovodrun_compute_as_rank_0_does(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(HINGE + SCRIPT)
    horovodrun = str(Path(sys.executable).with_name("horovodrun"))
    launcher = (sys.executable, horovodrun, "--gloo", "-np", "2", "-H", "localhost:2")
    # A test that has used Horovod in this process has left its variables there.
    variables = {k: v for k, v in os.environ.items() if not k.startswith("HOROVOD_")}
    for name, before in (("alone", ()), ("both", launcher)):
        result = subprocess.run(
            (*before, sys.executable, str(script), str(tmp_path / name)),
            env={**variables, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        assert result.returncode == 0, result.stdout + result.stderr
    alone, *both = (np.load(tmp_path / f"{name}.npy") for name in ("alone-0", "both-0", "both-1"))
    assert np.max(np.abs(alone - 5.0)) > 1e-3, "nothing was learned"
    for found in both:
        np.testing.assert_allclose(found, alone, rtol=0, atol=1e-6)


def test_who_joins_a_fit_within_elastic_run_computes_as_the_others(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(HINGE + LOOP)
    with Job(tmp_path, "--num_workers=1", "--max_workers=2", command=(str(script),)) as job:
        log = job.job_dir / "logs" / "w0.log"
        job.wait(lambda: (log.exists() and "awake" in log.read_text()) or None, "the second epoch")
        job.ctl("add", "1")
        job.finish()
        assert [e["world_size"] for e in job.events("round_running")] == [1, 2]
