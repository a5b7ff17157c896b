"""A function of batches is proved to treat rows one by one, or is not taken to do so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hvd_elastic_keras.step.partition.planning.row_wise import is_row_wise

X = tf.TensorSpec([None, 4, 4, 3])
Y = tf.TensorSpec([None], tf.int64)
LAYERS: dict[str, Any] = {
    "rescaling": keras.layers.Rescaling(1 / 255, offset=-1),
    "normalization": keras.layers.Normalization(mean=[1.0, 2, 3], variance=[1.0, 4, 9]),
    "resizing": keras.layers.Resizing(6, 5),
    "flatten": keras.layers.Flatten(),
    "dense": keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(2, "relu")]),
    "convolution": keras.Sequential([keras.layers.Conv2D(2, 3), keras.layers.MaxPooling2D(2)]),
    "one-hot": keras.layers.CategoryEncoding(5, output_mode="one_hot"),
    "flips": keras.layers.RandomFlip(seed=1),
}


def layer(name: str) -> Callable[..., Any]:
    def call(x: Any, y: Any) -> Any:
        return LAYERS[name](x), y

    return call


@tf.function
def inner(x: tf.Tensor) -> tf.Tensor:
    return x * 3


ROW_WISE: dict[str, Callable[..., Any]] = {
    "scaled": lambda x, y: (tf.cast(x, tf.float32) / 255.0, tf.one_hot(y, 10)),
    "a mean within rows": lambda x, y: (x - tf.reduce_mean(x, axis=[1, 2, 3], keepdims=True), y),
    "flattened": lambda x, y: (tf.reshape(x, [-1, 48]), y),
    "a dict": lambda x, y: ({"a": x, "b": x[:, ::2]}, y),
    "a function within": lambda x, y: (inner(x), y),
    "turned": lambda x, y: (tf.transpose(x, [0, 2, 1, 3]), y),
    "weights of classes": lambda x, y: (x, y, tf.gather(tf.constant([1.0, 2.0, 5.0]), y)),
    **{name: layer(name) for name in LAYERS if name not in ("one-hot", "flips")},
}
MIXING: dict[str, Callable[..., Any]] = {
    "the mean of a batch": lambda x, y: (x - tf.reduce_mean(x), y),
    "the size of the batch": lambda x, y: (x / tf.cast(tf.shape(x)[0], tf.float32), y),
    "turned around": lambda x, y: (x[::-1], y),
    "shifted": lambda x, y: (tf.roll(x, 1, axis=0), y),
    "mixup": lambda x, y: (0.7 * x + 0.3 * tf.reverse(x, [0]), y),
    "a sort": lambda x, y: (x, tf.sort(y)),
    "a constant": lambda x, y: (x, tf.constant(1.0)),
    "numbers of rows": lambda x, y: (x, tf.range(tf.size(y))),
    "merged with others": lambda x, y: (tf.reshape(x, [-1, 3]), y),
    "random": lambda x, y: (x + tf.random.normal([4, 4, 3]), y),
    "random rows": lambda x, y: (x + tf.random.normal(tf.shape(x)), y),
    "Python code": lambda x, y: (tf.py_function(lambda v: v, [x], tf.float32), y),
    "flips": layer("flips"),
    "a norm of the batch": lambda x, y: (tf.math.l2_normalize(x), y),
    "the first row": lambda x, y: (x - x[:1], y),
    "a branch on the batch": lambda x, y: (
        tf.cond(tf.reduce_max(x) > 0.5, lambda: x / 2, lambda: x),
        y,
    ),
}


@pytest.fixture(autouse=True, scope="module")
def _built() -> None:
    for name, found in LAYERS.items():
        found(np.zeros([2] if name == "one-hot" else [2, 4, 4, 3], np.float32))


def function_of(call: Callable[..., Any]) -> Any:
    return tf.function(call, autograph=False).get_concrete_function(X, Y)


@pytest.mark.parametrize("case", ROW_WISE)
def test_functions_of_rows_are_proved(case: str) -> None:
    call = ROW_WISE[case]
    assert is_row_wise(function_of(call))
    x = np.random.default_rng(0).random((6, 4, 4, 3), np.float32)
    y = np.arange(6) % 3
    whole = call(tf.constant(x), tf.constant(y))
    own = call(tf.constant(x[2:5]), tf.constant(y[2:5]))
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a[2:5], b, rtol=1e-6, atol=1e-6), whole, own
    )


@pytest.mark.parametrize("case", MIXING)
def test_functions_that_mix_rows_are_not(case: str) -> None:
    assert not is_row_wise(function_of(MIXING[case]))


def test_a_function_of_batches_of_one_size_is_not_proved() -> None:
    call = tf.function(lambda x: x * 2).get_concrete_function(tf.TensorSpec([8, 3]))
    assert not is_row_wise(call)
