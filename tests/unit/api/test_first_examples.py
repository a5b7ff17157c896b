"""What a model cannot compute is found before any worker starts."""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import pytest

from hvd_elastic_keras.api.trainer import Trainer
from hvd_elastic_keras.common.errors import ConfigurationError, DataError
from hvd_elastic_keras.settings.training_config import TrainingConfig

CONFIG = TrainingConfig(global_batch_size=8)
X = np.ones((8, 4), "float32")
Y = np.arange(8) % 3


def model(loss: str = "sparse_categorical_crossentropy") -> keras.Model:
    layers = [keras.layers.Input((4,)), keras.layers.Dense(3, activation="softmax")]
    result = keras.Sequential(layers)
    result.compile("sgd", loss)
    return result


def test_good_examples_leave_the_model_as_it_is(told: list[str]) -> None:
    trainer = Trainer(model(), (X, Y), validation=(X, Y), config=CONFIG)
    before = trainer.model.get_weights()
    trainer.try_first_examples()
    for a, b in zip(before, trainer.model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert told == []


def test_a_model_with_weight_decay_in_its_loss_is_good() -> None:
    layer = keras.layers.Dense(3, activation="softmax", kernel_regularizer="l2")
    regularized = keras.Sequential([keras.layers.Input((4,)), layer])
    regularized.compile("sgd", "sparse_categorical_crossentropy")
    Trainer(regularized, (X, Y), config=CONFIG).try_first_examples()


@pytest.mark.parametrize("split", ["training", "validation"])
def test_a_label_out_of_range_is_refused(split: str) -> None:
    bad = (X, Y + 7)
    data, validation = (bad, None) if split == "training" else ((X, Y), bad)
    trainer = Trainer(model(), data, validation=validation, config=CONFIG)
    with pytest.raises(DataError, match=f"first 8 examples of the {split} data.*outside the valid"):
        trainer.try_first_examples()


def test_text_is_no_number() -> None:
    trainer = Trainer(model(), (np.full((8, 4), "a"), Y), config=CONFIG)
    with pytest.raises(DataError, match="Cast string to float is not supported"):
        trainer.try_first_examples()


def test_a_value_that_is_not_finite_is_told(told: list[str]) -> None:
    x = X.copy()
    x[3, 1] = np.nan
    Trainer(model(), (x, Y), config=CONFIG).try_first_examples()
    assert len(told) == 1
    assert "among the first examples of the training data" in told[0]


def test_a_wrong_loss_is_not_blamed_on_the_data() -> None:
    with pytest.raises(ConfigurationError, match=r"compiled.*loss identifier: cross_entropi"):
        Trainer(model("cross_entropi"), (X, Y), config=CONFIG)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (X, r"There are no targets: give \(inputs, targets\)"),
        ((np.full((8,), b"a"), Y), "function that parses one example"),
    ],
)
def test_the_remedy_fits_what_is_wrong(data: object, words: str) -> None:
    with pytest.raises(DataError, match=words):
        Trainer(model(), data, config=CONFIG)


def test_batches_in_place_of_examples_are_recognised() -> None:
    import tensorflow as tf

    batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(2)
    with pytest.raises(DataError, match=r"leave batch\(\) out"):
        Trainer(model(), batches, config=CONFIG)
