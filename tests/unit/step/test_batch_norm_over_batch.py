"""Batch normalisation over the whole batch has the numbers of plain Keras."""

from __future__ import annotations

from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest
from keras import layers

from hvd_elastic_keras import ElasticCallback
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.settings.job_options import JobOptions
from hvd_elastic_keras.step import compiled_steps
from tests.harness.shared_fit import StepInThreads

X = np.random.default_rng(0).normal(size=(96, 6)).astype("float32")
Y = X[:, :1] * 2 + 1


def fitted(*callbacks: Any, synchronized: bool) -> list[Any]:
    keras.utils.set_random_seed(1)
    norm = layers.BatchNormalization(synchronized=synchronized)
    model = keras.Sequential([keras.Input((6,)), layers.Dense(5), norm, layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), "mse")
    model.fit(X, Y, batch_size=48, epochs=2, shuffle=False, verbose=0, callbacks=list(callbacks))
    return [np.array(w) for w in model.get_weights()]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("synchronized", [False, True])
def test_weights_are_those_of_plain_keras(workers: int, *, synchronized: bool) -> None:
    plain = fitted(synchronized=synchronized)
    callback = ElasticCallback(batch_norm="micro_batch" if synchronized else "auto")
    with (
        mock.patch.object(compiled_steps, "PartitionedStep", StepInThreads),
        mock.patch.object(StepInThreads, "workers", workers),
    ):
        found = fitted(callback, synchronized=synchronized)
    for one, other in zip(found, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_over_micro_batches_they_are_others() -> None:
    plain = fitted(synchronized=False)
    elastic = ElasticCallback(micro_batch_size=8, batch_norm="micro_batch")
    found = fitted(elastic, synchronized=False)
    assert not np.allclose(found[5], plain[5], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "is_told"),
    [
        ({}, False),
        ({"batch_norm": "micro_batch"}, False),
        ({"micro_batches": "loop"}, True),
        ({"micro_batches_together": 2}, True),
        ({"balance": "speed"}, True),
        ({"balance": "speed", "micro_batches": "together"}, False),
        ({"balance": "speed", "batch_norm": "micro_batch"}, False),
    ],
)
def test_a_step_of_one_round_differs_and_a_warning_says_so(
    options: dict[str, str], told: list[str], monkeypatch: pytest.MonkeyPatch, *, is_told: bool
) -> None:
    monkeypatch.setenv(env.OPTIONS, JobOptions(otherwise=options).encode())
    found = fitted(ElasticCallback(micro_batch_size=8), synchronized=False)
    lines = [line for line in told if "each micro-batch of 8 examples, and not over" in line]
    assert len(lines) == is_told
    differs = is_told or "batch_norm" in options
    plain = fitted(synchronized=False)
    assert np.allclose(found[5], plain[5], rtol=1e-4, atol=1e-5) is not differs
