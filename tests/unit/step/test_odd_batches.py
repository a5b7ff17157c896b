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


def test_what_only_the_step_takes_is_not_cut_and_that_is_told(
    trainings: list[Training], told: list[str]
) -> None:
    model = metric_model()
    before = model.get_weights()
    model.fit(Batches(pairs), verbose=0, callbacks=[ours := ElasticCallback()])
    assert trainings[0].train.micro_batch_size == 2, "the whole first dimension"
    assert len(told) == 1
    assert "do not fit the model's inputs, only its train_step takes them" in told[0]
    for a, b in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(a, b)
    other = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    other.compile("sgd", "mse")
    other.fit(np.zeros((16, 4)), np.zeros((16, 1)), batch_size=16, verbose=0, callbacks=[ours])
    assert trainings[1].train.micro_batch_size == 2, "an eighth, as ever"


@pytest.mark.usefixtures("told")
def test_it_trains_as_plain_fit_does() -> None:
    results = []
    for callbacks in ([], [ElasticCallback()], [ElasticCallback(micro_batch_size=2)]):
        keras.utils.set_random_seed(1)
        model = metric_model()
        history = model.fit(Batches(pairs), epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
        results.append([np.array(history.history["loss"]), *model.get_weights()])
    plain, *others = results
    for other in others:
        for a, b in zip(plain, other, strict=True):
            np.testing.assert_allclose(b, a, atol=1e-6)


def test_a_size_that_is_given_is_kept(trainings: list[Training], told: list[str]) -> None:
    ours = ElasticCallback(micro_batch_size=1)
    metric_model().fit(Batches(pairs), verbose=0, callbacks=[ours])
    assert trainings[0].train.micro_batch_size == 1
    assert told == []


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


@pytest.mark.parametrize("kind", ["PyDataset", "dataset", "generator"])
@pytest.mark.parametrize("size", [None, 1000])
def test_first_dimensions_that_differ_are_refused_with_what_was_received(
    kind: str, size: int | None
) -> None:
    def time_first(index: int) -> Any:
        x = IMAGES[index * 8 : index * 8 + 8, :, :, 0]
        return np.swapaxes(x, 0, 1)[:5], np.zeros(8, "float32")

    def batches() -> Any:
        return (time_first(index) for index in range(5))

    data: Any = {
        "PyDataset": lambda: Batches(time_first),
        "dataset": lambda: tf.data.Dataset.from_generator(
            batches,
            output_signature=(tf.TensorSpec([None, 8, 8]), tf.TensorSpec([None])),
        ),
        "generator": batches,
    }[kind]()
    ours = ElasticCallback(micro_batch_size=size)
    with pytest.raises(DataError) as caught:
        metric_model().fit(data, steps_per_epoch=5, verbose=0, callbacks=[ours])
    for words in (
        "The first batch of ",
        "((5, 8, 8) float32, (8,) float32)",
        "first dimensions of 5 and 8",
        "swap them back in train_step",
    ):
        assert words in str(caught.value)


def test_a_later_batch_whose_first_dimensions_differ_is_named() -> None:
    def batch(index: int) -> Any:
        return np.zeros((8, 4), "float32"), np.zeros((8 if index < 3 else 7, 1), "float32")

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = Batches(batch)
    with pytest.raises(DataError, match=r"^Batch 3 of the PyDataset is .* of 8 and 7; expected"):
        model.fit(data, verbose=0, shuffle=False, callbacks=[ElasticCallback()])
