"""The sources that docs/input.md shows, with files of that kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
pytest.importorskip("horovod.tensorflow")

import tensorflow as tf

from hvd_elastic_keras import Trainer, TrainingConfig
from tests.harness.documentation import example

CONFIG = TrainingConfig(global_batch_size=4, micro_batch_size=2, epochs=1)


def defined_by(heading: str) -> dict[str, Any]:
    """What the first example below a heading defines."""
    found: dict[str, Any] = {}
    exec(example("docs/input.md", heading), found)
    return found


def test_a_folder_of_images_is_trained_on(tmp_path: Path) -> None:
    for kind, colour in (("cat", 0), ("dog", 255)):
        folder = tmp_path / "train" / kind
        folder.mkdir(parents=True)
        for number in range(3):
            image = tf.fill((20, 30, 3), tf.constant(colour, tf.uint8))
            tf.io.write_file(str(folder / f"{number}.jpg"), tf.io.encode_jpeg(image))
    source, prepare = defined_by("## A folder of images")["dataset"]("train", str(tmp_path))
    images, labels = zip(*(prepare(source[index]) for index in range(len(source))), strict=True)
    assert labels == (0, 0, 0, 1, 1, 1)
    np.testing.assert_allclose([np.mean(image) for image in images], labels, atol=0.01)
    layers = [keras.Input((224, 224, 3)), keras.layers.GlobalAveragePooling2D()]
    model = keras.Sequential([*layers, keras.layers.Dense(2)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert Trainer(model, (source, prepare), config=CONFIG).fit().history["loss"]


def test_a_table_is_trained_on(tmp_path: Path) -> None:
    rows = "".join(f"{20 + n},{'red' if n % 2 else 'blue'},{n % 2}\n" for n in range(8))
    (tmp_path / "train.csv").write_text(f"age,colour,label\n{rows}")
    columns, labels = defined_by("## A table")["dataset"]("train", str(tmp_path))
    assert list(columns) == ["age", "colour"]
    assert labels.tolist() == [0, 1] * 4
    age = keras.Input((1,), name="age")
    colour = keras.Input((1,), name="colour", dtype="string")
    known = keras.layers.StringLookup(vocabulary=["red", "blue"], output_mode="one_hot")(colour)
    outputs = keras.layers.Dense(1)(keras.layers.Concatenate()([age, known]))
    model = keras.Model({"age": age, "colour": colour}, outputs)
    model.compile("sgd", "mse")
    assert Trainer(model, (columns, labels), config=CONFIG).fit().history["loss"]
