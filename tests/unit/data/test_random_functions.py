"""Random numbers in a tf.data pipeline: refused for certain where workers would draw others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from hvd_elastic_keras.common.errors import DataError
from hvd_elastic_keras.data.sources.iterators import check_order

IMAGES = np.random.default_rng(0).random((16, 8, 8, 3)).astype("float32")
AUTOTUNE = tf.data.AUTOTUNE


def images() -> Any:
    return tf.data.Dataset.from_tensor_slices(IMAGES)


def flip(x: Any) -> Any:
    return tf.image.random_flip_left_right(x)


def crop_sometimes(x: Any) -> Any:
    return tf.cond(tf.reduce_sum(x) > 1, lambda: tf.image.random_crop(x, [4, 4, 3]), lambda: x[4:])


def stateless(number: Any, x: Any) -> Any:
    return tf.image.stateless_random_flip_left_right(x, seed=[1, tf.cast(number, tf.int32)])


def noisy(x: Any) -> Any:
    pieces = tf.data.Dataset.from_tensor_slices(x)
    return pieces.map(lambda row: row + tf.random.normal([]))


def mapped(thing: Any, function: Callable[[Any, Any], Any]) -> Any:
    """Images through a function of each and of a thing that is made once."""
    return images().map(lambda x: function(x, thing))


PARALLEL = r"num_parallel_calls=\.\.\..*although all is seeded; deterministic=True keeps"
LASTING = r"goes on from one pass .* Put such layers into the model"
REFUSED = {
    "map": (lambda: images().map(flip, num_parallel_calls=2), PARALLEL),
    "map with AUTOTUNE, then others": (
        lambda: images().map(flip, num_parallel_calls=AUTOTUNE).batch(4).prefetch(1),
        PARALLEL,
    ),
    "deterministic=True": (
        lambda: images().map(flip, num_parallel_calls=2, deterministic=True),
        PARALLEL,
    ),
    "a branch": (lambda: images().map(crop_sometimes, num_parallel_calls=2), PARALLEL),
    "a map within interleave": (
        lambda: images().interleave(noisy, num_parallel_calls=2, cycle_length=2),
        PARALLEL,
    ),
    "one of two": (
        lambda: tf.data.Dataset.zip(images(), images().map(flip, num_parallel_calls=2)),
        PARALLEL,
    ),
    "Keras's layers": (
        lambda: images().map(keras.layers.RandomFlip(seed=1), num_parallel_calls=2),
        LASTING,
    ),
    "Keras's layers, one call after the other": (
        lambda: mapped(
            keras.layers.RandomRotation(0.1), lambda x, rotate: rotate(x, training=True)
        ),
        LASTING,
    ),
    "a SeedGenerator": (
        lambda: mapped(
            keras.random.SeedGenerator(1), lambda x, seed: x + keras.random.normal((), seed=seed)
        ),
        LASTING,
    ),
    "a Generator": (
        lambda: mapped(tf.random.Generator.from_seed(1), lambda x, some: x + some.normal([])),
        LASTING,
    ),
}
ACCEPTED = {
    "stateless": lambda: images().enumerate().map(stateless, num_parallel_calls=AUTOTUNE),
    "one call after the other": lambda: images().map(flip),
    "one parallel call": lambda: images().map(flip, num_parallel_calls=1),
    "interleave, one after the other": lambda: images().interleave(noisy, cycle_length=2),
    "nothing random": lambda: images().map(lambda x: x / 255, num_parallel_calls=AUTOTUNE),
    "layers that are not random": lambda: images().map(
        keras.layers.Rescaling(1 / 255), num_parallel_calls=2
    ),
    "a variable that is no seed": lambda: mapped(
        tf.Variable(0), lambda x, seen: (x, seen.assign_add(1))[0]
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_numbers_that_another_worker_cannot_draw_are_refused(case: str) -> None:
    make, words = REFUSED[case]
    keras.utils.set_random_seed(1)
    with pytest.raises(DataError, match=f"^x is a tf.data.Dataset with .*{words}"):
        check_order(make(), "x")
    tf.random.set_seed(None)


@pytest.mark.parametrize("case", ACCEPTED)
def test_numbers_that_any_worker_draws_again_are_accepted(case: str) -> None:
    keras.utils.set_random_seed(1)
    dataset = ACCEPTED[case]()
    check_order(dataset, "x")
    if case != "a variable that is no seed":
        first, second = (
            [np.asarray(leaf) for leaf in tf.nest.flatten(list(dataset))] for _ in range(2)
        )
        for a, b in zip(first, second, strict=True):
            np.testing.assert_array_equal(a, b)
    tf.random.set_seed(None)


def test_numbers_without_any_seed_are_refused() -> None:
    tf.random.set_seed(None)
    with pytest.raises(DataError, match=r"map\(...\) .*without any seed.*set_random_seed\(1\)"):
        check_order(images().map(flip), "x")


def test_with_op_determinism_parallel_calls_are_accepted_and_run_in_order() -> None:
    code = (
        "import keras, tensorflow as tf\n"
        "from hvd_elastic_keras.data.sources.iterators import check_order\n"
        "keras.utils.set_random_seed(1)\n"
        "tf.config.experimental.enable_op_determinism()\n"
        "def one(x):\n"
        "    slow = tf.reduce_sum(tf.random.uniform([x % 7 * 3000 + 1]))\n"
        "    return tf.random.uniform([]) + 0 * slow\n"
        "data = tf.data.Dataset.range(100).map(one, num_parallel_calls=8)\n"
        "check_order(data, 'x')\n"
        "assert [float(v) for v in data] == [float(v) for v in data]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
