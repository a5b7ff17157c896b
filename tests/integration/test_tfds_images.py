"""The real tensorflow-datasets path of the model zoo, on a small data set made here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hvd_elastic_keras.errors import DataError
from model_zoo import digits, tfds_images

COUNT = 20


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """A data directory with the data set `tiny_digits`: pictures of 8x8 pixels."""
    import tensorflow_datasets as tfds

    class TinyDigits(tfds.core.GeneratorBasedBuilder):
        """Some digits."""

        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> tfds.core.DatasetInfo:
            features = {
                "image": tfds.features.Image(shape=(8, 8, 1)),
                "label": tfds.features.ClassLabel(num_classes=10),
            }
            return tfds.core.DatasetInfo(
                builder=self,
                features=tfds.features.FeaturesDict(features),
                supervised_keys=("image", "label"),
            )

        def _split_generators(self, dl_manager: object) -> dict[str, Any]:
            return {"train": self._generate_examples()}

        def _generate_examples(self) -> Iterator[tuple[int, dict[str, Any]]]:
            images, labels = digits.load("train")
            for index in range(COUNT):
                image = (images[index] * 255).astype(np.uint8)
                yield index, {"image": image, "label": int(labels[index])}

    TinyDigits(data_dir=tmp_path).download_and_prepare()
    return tmp_path


def test_a_prepared_data_set_is_read_in_the_same_order_every_time(prepared: Path) -> None:
    dataset = tfds_images.load("tiny_digits", "train", str(prepared), image_size=16)
    first, second = (list(dataset.as_numpy_iterator()) for _ in range(2))
    assert len(first) == COUNT
    assert first[0][0].shape == (16, 16, 1)
    assert max(image.max() for image, _ in first) <= 1.0
    for (image, label), (same_image, same_label) in zip(first, second, strict=True):
        np.testing.assert_array_equal(image, same_image)
        assert label == same_label
    assert sorted(label for _, label in first) == sorted(digits.load("train")[1][:COUNT])


def test_a_data_set_that_is_not_prepared_is_reported_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"tfds build mnist --data_dir={tmp_path}"):
        tfds_images.load("mnist", "train", str(tmp_path), image_size=28)
