"""Micro-batches in one pass: the numbers of one after the other, or one after the other it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras import ElasticCallback
from hvd_elastic_keras.common import env
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.common.options import LOOP, TOGETHER, JobOptions, RunOptions

BATCH, MICRO_BATCH = 12, 4
EXAMPLES = 42  # the last batch has micro-batches of 4 and of 2
ONE_AFTER_THE_OTHER = [4] * 9 + [4, 2]
IN_ONE_PASS = [12] * 3 + [6]
BY_SIZE = [12] * 3 + [4, 2]

Layers = keras.layers


class Sizes(Layers.Layer):  # type: ignore[misc]
    """Notes how many examples it sees in training."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def call(self, inputs: Any, training: bool = False) -> Any:
        """The inputs as they are."""
        if not training:
            return inputs

        def note(values: Any) -> Any:
            self.seen.append(len(values))
            return values

        same = tf.ensure_shape(tf.numpy_function(note, [inputs], inputs.dtype), inputs.shape)
        return inputs + tf.stop_gradient(same - inputs)


class OwnStep(keras.Model):  # type: ignore[misc]
    """A `train_step` as in Keras's guides, with gradients that are clipped by hand."""

    def train_step(self, data: Any) -> dict[str, Any]:
        """One step."""
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = tf.reduce_mean((tf.squeeze(predicted, 1) - y) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply([g * 0.5 for g in gradients], self.trainable_variables)
        return {"loss": loss}


def dense(kind: type[keras.Model] = keras.Model, *between: Any) -> tuple[keras.Model, Sizes]:
    """A small network, with further layers between its own."""
    sizes = Sizes()
    inputs = keras.Input((6,))
    hidden = sizes(Layers.Dense(8, activation="tanh")(inputs))
    for layer in between:
        hidden = layer(hidden)
    return kind(inputs, Layers.Dense(1)(hidden)), sizes


def with_dropout() -> tuple[keras.Model, Sizes]:
    return dense(keras.Model, Layers.Dropout(0.4, seed=3))


def with_sum_in_the_loss() -> tuple[keras.Model, Sizes]:
    return dense(keras.Model, Layers.ActivityRegularization(l2=0.01))


def with_own_step() -> tuple[keras.Model, Sizes]:
    return dense(OwnStep)


def recurrent() -> tuple[keras.Model, Sizes]:
    return dense(keras.Model, Layers.Reshape((4, 2)), Layers.LSTM(3))


def with_batch_norm() -> tuple[keras.Model, Sizes]:
    return dense(keras.Model, Layers.BatchNormalization(momentum=0.6))


def with_batch_norm_of_images() -> tuple[keras.Model, Sizes]:
    return dense(
        keras.Model,
        Layers.Reshape((2, 2, 2)),
        Layers.Conv2D(3, 2, padding="same"),
        Layers.BatchNormalization(scale=False, momentum=0.6),
        Layers.BatchNormalization(axis=1, center=False),
        Layers.Flatten(),
    )


def trained(
    make: Callable[[], tuple[keras.Model, Sizes]],
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    micro_batch_size: int = MICRO_BATCH,
) -> tuple[list[Any], list[int]]:
    """The variables after a training, and how many examples each pass over the network had."""
    monkeypatch.setenv(env.OPTIONS, JobOptions(otherwise=options).encode())
    keras.utils.set_random_seed(2)
    model, sizes = make()
    model.compile(keras.optimizers.SGD(0.1, momentum=0.5), "mse", metrics=["mae"])
    numbers = np.random.default_rng(5)
    x = numbers.normal(size=(EXAMPLES, 6)).astype(np.float32)
    elastic = ElasticCallback(micro_batch_size=micro_batch_size)
    begin = keras.callbacks.LambdaCallback(on_epoch_begin=lambda *_: sizes.seen.clear())
    callbacks = [elastic, begin]
    history = model.fit(x, x.sum(axis=1), BATCH, shuffle=False, verbose=0, callbacks=callbacks)
    return [*map(np.asarray, model.variables), *history.history.values()], sizes.seen


def assert_same(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("make", "passes"),
    [
        *((make, IN_ONE_PASS) for make in (dense, with_dropout, with_sum_in_the_loss)),
        *((make, IN_ONE_PASS) for make in (with_own_step, recurrent)),
        *((make, BY_SIZE) for make in (with_batch_norm, with_batch_norm_of_images)),
    ],
)
def test_one_pass_gives_what_one_after_the_other_gives(
    make: Callable[[], tuple[keras.Model, Sizes]],
    passes: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected, one_by_one = trained(make, monkeypatch, {"micro_batches": LOOP})
    found, at_once = trained(make, monkeypatch, {"micro_batches": TOGETHER})
    assert one_by_one == ONE_AFTER_THE_OTHER
    assert at_once == passes
    assert_same(found, expected)


def test_no_more_than_are_asked_for_are_computed_in_one_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, passes = trained(dense, monkeypatch, {"micro_batches_together": 2})
    assert passes == [8, 4] * 3 + [6]


def test_bits_that_depend_on_the_number_of_passes_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="deterministic was given with micro_batches"):
        RunOptions(deterministic=True, micro_batches=TOGETHER)
