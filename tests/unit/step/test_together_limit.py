"""Memory that holds one micro-batch and not all of a share: fewer in one pass, the same weights."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("horovod.tensorflow")

from tests.harness.job import REPOSITORY

pytestmark = pytest.mark.timeout(300)
SCRIPT = """
import resource
import keras, numpy as np, psutil, tensorflow as tf
from hvd_elastic_keras import ElasticCallback

ROOM = {room} * 2**20
layers = keras.layers

class LessMemory(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 2:  # short sequences: by now all is traced, and threads have their stacks
            used = psutil.Process().memory_info().vms
            resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, -1))

# No product of matrices: where no memory is left for one, oneDNN ends the process.
class Wide(layers.Layer):
    def build(self, shape):
        self.first = self.add_weight(shape=(2**17,), initializer="uniform")
        self.second = self.add_weight(shape=(2**17,), initializer="uniform")

    def call(self, inputs):
        if not {in_graph}:
            seen = tf.numpy_function(lambda x: x, [inputs], inputs.dtype)
            inputs = tf.ensure_shape(seen, inputs.shape)
        hidden = tf.tanh(inputs * self.first)
        return tf.reduce_sum(hidden * self.second, 2) / 2**9

def model():
    keras.utils.set_random_seed(1)
    mean = layers.Lambda(lambda x: tf.reduce_mean(x, 1))
    found = keras.Sequential([keras.Input((None, 1)), Wide(), mean])
    found.compile(keras.optimizers.SGD(10.0), "mse")
    return found

def batches():
    random = np.random.default_rng(1)
    for length in (1, 1, 16, 16):
        x = random.normal(size=(64, length, 1)).astype("float32")
        yield x, x.sum((1, 2))

shapes = tf.TensorSpec([64, None, 1]), tf.TensorSpec([64])
data = tf.data.Dataset.from_generator(batches, output_signature=shapes)
plain, ours = model(), model()
before = plain.get_weights()
callbacks = [LessMemory(), ElasticCallback(micro_batch_size=4)]
ours.fit(data, verbose=0, callbacks=callbacks)
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
plain.fit(data, verbose=0)
for a, b, c in zip(before, plain.get_weights(), ours.get_weights()):
    print("differs by", np.abs(b - c).max() / np.abs(b - a).max())
"""
"""A micro-batch of long sequences has activations of 32 MiB each, and all of them of 512 MiB."""


def run(room: int, *, in_graph: bool) -> subprocess.CompletedProcess[str]:
    """Trains with so many MiB beside what it has before the first long sequences.

    Args:
      in_graph: whether the model is TensorFlow alone; else it calls Python, too.
    """
    return subprocess.run(
        [sys.executable, "-c", SCRIPT.format(room=room, in_graph=in_graph)],
        cwd=REPOSITORY,
        env=os.environ
        | {
            "MALLOC_MMAP_THRESHOLD_": str(2**20),
            "TF_ENABLE_ONEDNN_OPTS": "0",
            "HVD_ELASTIC_OPTIONS": '{"on_nonfinite": "skip"}',
        },
        text=True,
        capture_output=True,
        timeout=250,
        check=False,
    )


def test_fewer_are_computed_in_one_pass_when_memory_runs_out() -> None:
    ended = run(room=350, in_graph=True)
    assert ended.returncode == 0, ended.stderr
    told = re.findall(
        r"ran out with (\d+) micro-batches in one pass; from now on (\d+)", ended.stdout
    )
    assert told[0] == ("16", "8")
    differences = [float(text) for text in re.findall(r"differs by (\S+)", ended.stdout)]
    assert len(differences) == 2
    assert max(differences) < 1e-4


def test_python_code_of_the_step_is_called_once_so_that_there_are_no_fewer() -> None:
    ended = run(room=350, in_graph=False)
    assert "warning: the step needs all rows of a worker at once" in ended.stdout
    assert "ResourceExhaustedError" in ended.stderr
