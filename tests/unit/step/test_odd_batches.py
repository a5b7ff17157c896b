"""Batches whose first dimension is not the examples, as some `train_step`s take them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras import ElasticCallback
from hvd_elastic_keras.api import callback
from hvd_elastic_keras.api.training import Training
from hvd_elastic_keras.common.errors import DataError

IMAGES = np.random.default_rng(0).random((40, 8, 8, 1)).astype("float32")


class Batches(keras.utils.PyDataset):
    def __init__(self, batch: Callable[[int], Any]) -> None:
        super().__init__()
        self._batch = batch

    @property
    def num_batches(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        return self._batch(index)


def pairs(index: int) -> Any:
    """Anchors and positives, as in the metric learning example of the Keras documentation."""
    part = IMAGES[index * 8 : index * 8 + 8]
    return np.stack([part[:4], part[4:]])


class Metric(keras.Model):
    def train_step(self, data: Any) -> dict[str, Any]:
        x = data[0]
        anchors, positives = x[0], x[1]
        with tf.GradientTape() as tape:
            a, p = self(anchors, training=True), self(positives, training=True)
            loss = self.compute_loss(y=tf.range(4), y_pred=tf.matmul(a, p, transpose_b=True))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def metric_model() -> Any:
    inputs = keras.Input((8, 8, 1))
    model = Metric(inputs, keras.layers.Dense(6)(keras.layers.Flatten()(inputs)))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[Training]:
    """What would be trained."""
    seen: list[Training] = []
    monkeypatch.setattr(callback, "train", lambda training, _: seen.append(training))
    return seen


def test_what_only_the_step_takes_is_cut_as_everything_is(
    trainings: list[Training], told: list[str]
) -> None:
    model = metric_model()
    before = model.get_weights()
    model.fit(Batches(pairs), verbose=0, callbacks=[ElasticCallback()])
    assert trainings[0].train.micro_batch_size == 1
    assert told == []
    for a, b in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_the_step_does_not_take_either_is_refused_with_both_errors() -> None:
    data = Batches(lambda index: pairs(index)[:, :, :6])
    with pytest.raises(DataError) as caught:
        metric_model().fit(data, verbose=0, callbacks=[ElasticCallback()])
    for words in (
        "Neither the model nor its train_step takes the first batch",
        "((2, 4, 6, 8, 1) float32)",
        "Of the model, Keras says: ",
        "train_step ends with ",
    ):
        assert words in str(caught.value)
