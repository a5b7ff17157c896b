"""Errors of models that count on a whole batch, as they come from real steps on micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from hvd_elastic_keras.api.first_steps import explained

BATCH, MICRO = 32, 8
X = np.random.default_rng(0).random((BATCH, 6)).astype("float32")
Y = X[:, :1].copy()
layers = keras.layers


class Call(layers.Layer):
    """A layer of a user's own."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self._function = function

    def call(self, x: Any) -> Any:
        return self._function(x)

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


class Discriminator(keras.Model):
    """A step with labels for so many examples, real and generated."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, _ = data
        with tf.GradientTape() as tape:
            found = self(tf.concat([x, x], 0))
            labels = tf.concat([tf.ones((BATCH, 1)), tf.zeros((BATCH, 1))], 0)
            loss = tf.reduce_mean(keras.losses.binary_crossentropy(labels, tf.sigmoid(found)))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


class Halves(keras.Model):
    """A step that takes a batch apart by itself."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, _ = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x[:16]) - self(x[16:32])))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def with_layer(function: Callable[[Any], Any], loss: Any = "mse") -> Any:
    inputs = keras.Input((6,))
    model = keras.Model(inputs, layers.Dense(1)(Call(function)(inputs)))
    model.compile("sgd", loss)
    return model


def with_step(kind: Any) -> Any:
    inputs = keras.Input((6,))
    model = kind(inputs, layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    return model


def identity(x: Any) -> Any:
    return x


def fixed_loss(y: Any, y_pred: Any) -> Any:
    return tf.reduce_mean(tf.square(y - y_pred) * tf.ones([BATCH, 1]))


MODELS: dict[str, Callable[[], Any]] = {
    "a number in noise": lambda: with_layer(
        lambda x: x + tf.random.stateless_normal([BATCH, 6], seed=[1, 2])
    ),
    "a number in reshape": lambda: with_layer(
        lambda x: tf.reshape(tf.reshape(x, [BATCH, 2, 3]), [-1, 6])
    ),
    "a number in concat": lambda: with_layer(
        lambda x: tf.concat([x, tf.ones([BATCH, 1])], 1)[:, 1:]
    ),
    "a number in einsum": lambda: with_layer(
        lambda x: tf.einsum("bi,bj->bi", x, tf.ones([BATCH, 6]))
    ),
    "a number in matmul": lambda: with_layer(lambda x: tf.matmul(tf.eye(BATCH), x)),
    "a number in ensure_shape": lambda: with_layer(lambda x: tf.ensure_shape(x, [BATCH, 6])),
    "a number in split": lambda: with_layer(lambda x: tf.concat(tf.split(x, [16, 16]), 0)),
    "a number in an index": lambda: with_layer(lambda x: x + x[BATCH - 1]),
    "a number in the loss": lambda: with_layer(identity, fixed_loss),
    "labels in train_step": lambda: with_step(Discriminator),
    "slices in train_step": lambda: with_step(Halves),
    "a static size": lambda: with_layer(lambda x: x + tf.zeros([x.shape[0], 6])),
    "arithmetic with a static size": lambda: with_layer(lambda x: x * (1 / (x.shape[0] * 2))),
}


def error_of(make: Callable[[], Any], size: int, eagerly: bool) -> Exception | None:
    """What a step raises on so many examples, traced for any number of them."""
    model = make()
    model.optimizer.build(model.trainable_variables)
    spec = [tf.TensorSpec([None, *a.shape[1:]], a.dtype) for a in (X, Y)]

    def step(x: Any, y: Any) -> Any:
        return model.train_step((x, y))

    run = step if eagerly else tf.function(step, input_signature=spec, autograph=False)
    try:
        run(tf.constant(X[:size]), tf.constant(Y[:size]))
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("case", MODELS)
@pytest.mark.parametrize("eagerly", [False, True])
def test_a_model_that_counts_on_a_whole_batch_is_told_how_not_to(case: str, eagerly: bool) -> None:
    error = error_of(MODELS[case], MICRO, eagerly)
    if error is None:
        assert "static" in case, "only a traced step does not know the size"
        assert eagerly
        return
    found = explained(error, MICRO, BATCH)
    assert found is not None, error
    for words in (
        "on a micro-batch of 8 of the 32 examples",
        "keras.ops.shape(x)[0] in place of a number",
        # A size that is unknown in the trace is so for a whole batch, too.
        "in place of a number or x.shape[0]." if "static" in case else "say micro_batch_size=32",
    ):
        assert words in str(found)
    assert len(str(found).splitlines()) == 1
    assert "{{" not in str(found)


@pytest.mark.parametrize("case", [case for case in MODELS if "static" not in case])
def test_what_it_says_helps(case: str) -> None:
    assert error_of(MODELS[case], BATCH, eagerly=False) is None


@pytest.mark.parametrize("case", [case for case in MODELS if "static" not in case])
def test_nothing_is_said_of_micro_batches_where_there_are_none(case: str) -> None:
    error = error_of(MODELS[case], MICRO, eagerly=False)
    assert error is not None
    assert explained(error, BATCH, BATCH) is None


OTHERS: dict[str, Callable[[], Any]] = {
    "features that differ": lambda: with_layer(lambda x: x + tf.ones([1, 7])),
    "a label out of range": lambda: with_layer(
        identity,
        lambda y, y_pred: tf.nn.sparse_softmax_cross_entropy_with_logits(
            tf.fill(tf.shape(y)[:1], 5), y_pred
        ),
    ),
    "an index out of a table": lambda: with_layer(
        lambda x: x + tf.gather(tf.ones([MICRO, 6]), tf.fill(tf.shape(x)[:1], 9))
    ),
    "an error of the user's": lambda: with_layer(lambda x: {}["feature"]),
    "a matrix that does not fit": lambda: with_layer(
        lambda x: tf.matmul(x, tf.random.stateless_normal([7, 6], seed=[1, 2]))
    ),
}


@pytest.mark.parametrize("case", OTHERS)
@pytest.mark.parametrize("eagerly", [False, True])
def test_other_errors_are_left_alone(case: str, eagerly: bool) -> None:
    error = None
    try:
        error = error_of(OTHERS[case], MICRO, eagerly)
    except Exception as built:  # Keras finds some when the model is made
        error = built
    assert error is not None
    assert explained(error, MICRO, BATCH) is None, error


@pytest.mark.parametrize(
    ("text", "micro", "batch", "says"),
    [
        ("Incompatible shapes: [32,1,1,1] vs. [16,16,16,3]", 16, 32, True),
        ("Incompatible shapes: [64,1] vs. [16,1]", 8, 32, True),  # two examples for each
        ("Incompatible shapes: [4,1] vs. [32,1]", 8, 32, True),  # half of it, in a trial
        ("Incompatible shapes: [16,5] vs. [16,3]", 16, 32, False),
        ("Incompatible shapes: [16,5] vs. [20,5]", 16, 32, False),
        ("Incompatible shapes: [32] vs. [16,3]", 16, 32, False),
        ("Matrix size-incompatible: In[0]: [32,32], In[1]: [16,8]", 16, 32, True),
        ("Matrix size-incompatible: In[0]: [16,64], In[1]: [32,8]", 16, 32, False),
        ("None values not supported.", 16, 32, True),
    ],
)
def test_sizes_tell_whether_micro_batches_are_to_blame(
    text: str, micro: int, batch: int, says: bool
) -> None:
    assert (explained(ValueError(text), micro, batch) is not None) == says
