"""`ElasticCallback` refuses what it cannot train before the first step, in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.job import Job

SCRIPT = """
import keras, numpy as np, tensorflow as tf
from hvd_elastic_keras import ElasticCallback

keras.utils.set_random_seed(1)
x = np.arange(256, dtype="float32").reshape(64, 4)

class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, x):
        return self.dense(x)

class Steps(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print("a step is done")

model = Model()
model.compile("sgd", "mse")
data = tf.data.Dataset.from_tensor_slices((x, x[:, :2])).batch(16)
model.fit(data, callbacks=[ElasticCallback(micro_batch_size=4), Steps()])
"""
OTHER_LOOP = """    def make_train_function(self, force=False):
        return super().make_train_function(force)

class Steps"""
ENDS_ELSEWHERE = """import os
mine = 64 if os.environ["HVD_ELASTIC_WORKER_ID"] == "w0" else 48
data = data.unbatch().take(mine).filter(lambda x, y: True).batch(16)
model.fit("""
DIFFERS_LATER = """import os
mine = os.environ["HVD_ELASTIC_WORKER_ID"] == "w1"
late = tf.data.Dataset.range(4).map(lambda i: tf.cast(mine and i > 1, tf.float32))
data = tf.data.Dataset.zip(data, late).map(lambda xy, more: (xy[0] + more, xy[1]))
model.fit("""
NOTICED_LATE = ("data that end elsewhere", "data that differ later")
REFUSALS = {
    "other data in each worker": (
        [('np.arange(256, dtype="float32")', "np.random.RandomState().rand(256)")],
        "seed all that is random before the data are made",
    ),
    "data that end elsewhere": (
        [("model.fit(", ENDS_ELSEWHERE)],
        "The data of some workers have ended after 3 batches of this epoch",
    ),
    "data that differ later": (
        [("model.fit(", DIFFERS_LATER)],
        "Batch 2 of pass 0 over the training data (counted from 0) was not the same in all "
        "workers: w1 had another one than w0, w2. It was noticed after step 4;",
    ),
    "other loop": ([("class Steps", OTHER_LOOP)], "Override train_step instead."),
    "strategy": (
        [
            ("model = Model()\n", "with tf.distribute.get_strategy().scope(): model = Model()\n"),
            (
                "model.compile",
                "model._distribute_strategy = tf.distribute.OneDeviceStrategy('/cpu:0')\n"
                "model.compile",
            ),
        ],
        "expected no tf.distribute strategy",
    ),
    "another release of Keras": (
        [("keras.utils.set", "keras.__version__ = '3.99.0'\nkeras.utils.set")],
        "Keras 3.99.0 is installed, expected 3.8 to",
    ),
    "another backend": (
        [("keras.utils.set", "keras.backend.backend = lambda: 'jax'\nkeras.utils.set")],
        "Set KERAS_BACKEND=tensorflow.",
    ),
    "options that exclude each other": (
        [("micro_batch_size=4", "batch='per_worker', balance='speed'")],
        "Leave one of the two out.",
    ),
    "wrong shape": ([("x[:, :2]", "x[:, :3]")], "The model does not accept the data"),
}


@pytest.mark.slow(but=("other data in each worker", "strategy", "wrong shape"))
@pytest.mark.parametrize("case", REFUSALS)
def test_it_is_refused_in_one_line_and_where_possible_before_the_first_step(
    case: str, tmp_path: Path
) -> None:
    changes, remedy = REFUSALS[case]
    text = SCRIPT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    script = tmp_path / "script.py"
    script.write_text(text)
    workers = 3 if case == "data that differ later" else 2 if "data" in case else 1
    with Job(tmp_path, f"--num_workers={workers}", command=(str(script),)) as job:
        ends_late = case in NOTICED_LATE
        job.finish(exit_code=1 if ends_late else 2)
        errors = [line for line in job.output.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1
        assert remedy in errors[0]
        assert "Traceback" not in job.output
        assert ("a step is done" in job.output) == ends_late
        assert len(job.events("worker_started")) == workers
