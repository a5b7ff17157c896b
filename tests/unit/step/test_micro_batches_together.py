"""Micro-batches in one pass and one after the other give the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras import ElasticCallback
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.settings.job_options import JobOptions
from hvd_elastic_keras.settings.options import LOOP, TOGETHER, RunOptions
from hvd_elastic_keras.step import shared_step

BATCH, MICRO_BATCH = 12, 4
EXAMPLES = 42  # the last batch has micro-batches of 4 and of 2

Layers = keras.layers


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


def dense(kind: type[keras.Model] = keras.Model, *between: Any) -> keras.Model:
    """A small network, with further layers between its own."""
    inputs = keras.Input((6,))
    hidden = Layers.Dense(8, activation="tanh")(inputs)
    for layer in between:
        hidden = layer(hidden)
    return kind(inputs, Layers.Dense(1)(hidden))


def with_dropout() -> keras.Model:
    return dense(keras.Model, Layers.Dropout(0.4, seed=3))


def with_sum_in_the_loss() -> keras.Model:
    return dense(keras.Model, Layers.ActivityRegularization(l2=0.01))


def with_own_step() -> keras.Model:
    return dense(OwnStep)


def recurrent() -> keras.Model:
    return dense(keras.Model, Layers.Reshape((4, 2)), Layers.LSTM(3))


def with_batch_norm() -> keras.Model:
    return dense(keras.Model, Layers.BatchNormalization(momentum=0.6))


def with_batch_norm_of_images() -> keras.Model:
    return dense(
        keras.Model,
        Layers.Reshape((2, 2, 2)),
        Layers.Conv2D(3, 2, padding="same"),
        Layers.BatchNormalization(scale=False, momentum=0.6),
        Layers.BatchNormalization(axis=1, center=False),
        Layers.Flatten(),
    )


def trained(make: Callable[[], keras.Model], monkeypatch: Any, **options: Any) -> list[Any]:
    """The variables and the history after a training."""
    monkeypatch.setenv(env.OPTIONS, JobOptions(otherwise=options).encode())
    keras.utils.set_random_seed(2)
    model = make()
    model.compile(keras.optimizers.SGD(0.1, momentum=0.5), "mse", metrics=["mae"])
    x = np.random.default_rng(5).normal(size=(EXAMPLES, 6)).astype(np.float32)
    elastic = ElasticCallback(micro_batch_size=MICRO_BATCH, batch_norm="micro_batch")
    history = model.fit(x, x.sum(axis=1), BATCH, shuffle=False, verbose=0, callbacks=[elastic])
    return [*map(np.asarray, model.variables), *history.history.values()]


@pytest.mark.parametrize(
    "make",
    [
        *(dense, with_dropout, with_sum_in_the_loss, with_own_step, recurrent),
        *(with_batch_norm, with_batch_norm_of_images),
    ],
)
def test_one_pass_gives_what_one_after_the_other_gives(
    make: Callable[[], keras.Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_pieces: list[int] = []
    original = shared_step.given_by_pieces

    def noted(*arguments: Any) -> Any:
        in_pieces.append(1)
        return original(*arguments)

    monkeypatch.setattr(shared_step, "given_by_pieces", noted)
    found = trained(make, monkeypatch, micro_batches=TOGETHER)
    assert not in_pieces
    limited = trained(make, monkeypatch, micro_batches=TOGETHER, micro_batches_together=2)
    assert in_pieces
    expected = trained(make, monkeypatch, micro_batches=LOOP)
    for one, other, some in zip(found, expected, limited, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)
        np.testing.assert_allclose(some, other, rtol=2e-5, atol=2e-6)


def test_bits_that_depend_on_the_number_of_passes_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="deterministic was given with micro_batches"):
        RunOptions(deterministic=True, micro_batches=TOGETHER)
