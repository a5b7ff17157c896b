"""Models that several workers cannot train are refused with the reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras import ElasticCallback
from hvd_elastic_keras.common.errors import ConfigurationError

X = np.random.default_rng(0).normal(size=(20, 4)).astype("float32")


def fit(*layers: Any) -> None:
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(X, X[:, :1], batch_size=10, verbose=0, callbacks=[ElasticCallback()])


def test_a_fixed_batch_size_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"shape \(10, 4\), with a fixed batch size"):
        fit(keras.Input(batch_shape=(10, 4)))
