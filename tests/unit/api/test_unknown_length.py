"""Data of which TensorFlow does not know the number of batches, against plain `fit`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras import ElasticCallback

SIZE, BATCH = 44, 8
X = np.random.default_rng(0).normal(size=(SIZE, 3)).astype("float32")


def batches(known: bool, drop_remainder: bool) -> Any:
    pairs = tf.data.Dataset.from_tensor_slices((X, X[:, :1])).filter(lambda x, y: True)
    data = pairs.batch(BATCH, drop_remainder=drop_remainder)
    count = SIZE // BATCH + (not drop_remainder)
    return data.apply(tf.data.experimental.assert_cardinality(count)) if known else data


def losses(elastic: bool, train: Any, validation: Any, epochs: int) -> dict[str, list[float]]:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    callbacks = [ElasticCallback()] if elastic else []
    given: dict[str, Any] = {"epochs": epochs, "verbose": 0, "callbacks": callbacks}
    found = model.fit(train, validation_data=validation, **given).history
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("drop_remainder", [False, True])
@pytest.mark.parametrize("known", [(True, True), (False, True), (True, False)])
def test_a_difference_from_plain_fit_is_said(
    known: tuple[bool, bool], drop_remainder: bool, epochs: int, told: list[str]
) -> None:
    data = [batches(k, drop_remainder) for k in known]
    found, expected = (losses(elastic, *data, epochs) for elastic in (True, False))
    changed = {n for n in expected if found[n] != pytest.approx(expected[n], rel=1e-4)}
    lengths = [text for text in told if "how many batches" in text]
    assert changed == {
        name
        for name, is_known in zip(("loss", "val_loss"), known, strict=True)
        if not is_known and drop_remainder
    }
    assert bool(changed) == any("the means of losses and metrics" in text for text in lengths)
    counts = not known[0] and epochs > 1  # steps, which optimizers see
    assert counts == any("x: " in text and "Adam" in text for text in lengths)
    assert len(lengths) == (bool(changed) or counts)
