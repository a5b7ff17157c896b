"""An error that the user's own code raises while a model is built comes out of `fit` as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras import ElasticCallback
from hvd_elastic_keras.common.errors import DataError

X = np.zeros((8, 4), "float32")


class MarginError(Exception):
    """What a script may raise, and expect."""


def raises(*_: Any) -> Any:
    raise MarginError("margins must be positive")


class Accuracy(keras.metrics.Mean):
    def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> None:
        raises()


class Head(keras.layers.Layer):
    def build(self, shape: Any) -> None:
        raises()

    def call(self, x: Any) -> Any:
        return x


class Stepping(keras.Model):
    def __init__(self, head: Any = None) -> None:
        super().__init__()
        self.head = head or keras.layers.Dense(4)

    def call(self, x: Any) -> Any:
        return self.head(x)

    def train_step(self, data: Any) -> Any:
        if isinstance(self.head, keras.layers.Dense):
            raises()
        return super().train_step(data)


def sequential(*layers: Any) -> Any:
    return keras.Sequential([*layers, keras.layers.Dense(4)])


def fit(model: Any, loss: Any = "mse", elastic: bool = True, **more: Any) -> None:
    model.compile("sgd", loss, **more)
    model.fit(X, X, verbose=0, callbacks=[ElasticCallback()] if elastic else [])


@pytest.mark.parametrize("elastic", [False, True])
@pytest.mark.parametrize("place", ["loss", "metric", "build", "train_step", "build below a step"])
def test_as_from_plain_fit(place: str, elastic: bool) -> None:
    model: Any = sequential()
    more: dict[str, Any] = {}
    if place == "loss":
        more = {"loss": raises}
    elif place == "metric":
        more = {"metrics": [Accuracy()]}
    elif place == "build":
        model = sequential(Head())
    else:
        model = Stepping(Head() if place == "build below a step" else None)
    with pytest.raises(MarginError, match="margins must be positive") as caught:
        fit(model, elastic=elastic, **more)
    assert caught.traceback[-1].name == "raises"


def test_a_library_that_does_not_like_the_data_is_still_explained() -> None:
    with pytest.raises(DataError, match=r"does not accept the data\. A batch is .* Keras says"):
        fit(sequential(keras.Input((5,))))


def test_a_known_remedy_is_still_told() -> None:
    def per_example(y: Any, p: Any) -> Any:
        return tf.reduce_sum((y - p) ** 2) / (2 * y.shape[0])

    with pytest.raises(DataError, match=r"keras\.ops\.shape\(x\)\[0\] in place of x\.shape\[0\]"):
        fit(sequential(), per_example)


@pytest.mark.parametrize("elastic", [False, True])
def test_code_that_needs_values_trains_eagerly_in_one_process_as_in_plain_keras(
    elastic: bool,
) -> None:
    def loss(y: Any, p: Any) -> Any:
        found = tf.reduce_mean((y - p) ** 2)
        if found.numpy() < 0:
            print("impossible")
        return found

    def median(y: Any, p: Any) -> float:
        return float(np.median(np.abs(y.numpy() - p.numpy())))

    fit(sequential(), loss, elastic=elastic, metrics=[median], run_eagerly=True)
