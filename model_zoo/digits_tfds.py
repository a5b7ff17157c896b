"""The digits of `digits.py` as a data set of tensorflow-datasets that needs no download.

    import model_zoo.digits_tfds, tensorflow_datasets as tfds
    tfds.builder("bundled_digits", data_dir=DIR).download_and_prepare()

Add `file_format="array_record"` for the other file format. Prepared data are found without
importing this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from model_zoo import digits

DESCRIPTION = "1,797 real handwritten digits of 8x8 pixels; no download."
CITATION = """@misc{optdigits, author={Alpaydin, E. and Kaynak, C.}, year={1998},
title={Optical Recognition of Handwritten Digits},
howpublished={UCI Machine Learning Repository}}"""


class BundledDigits(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc]
    """1,437 "train" and 360 "test" examples: an image, uint8 [8, 8, 1], and its label."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "First release."}  # noqa: RUF012

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=DESCRIPTION,
            citation=CITATION,
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(8, 8, 1)),
                    "label": tfds.features.ClassLabel(num_classes=10),
                }
            ),
            supervised_keys=("image", "label"),
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        return {"train": self._generate_examples("train"), "test": self._generate_examples("test")}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        images, labels = digits.load(split)
        for index, (image, label) in enumerate(zip(images, labels, strict=True)):
            pixels = np.round(image * 255).astype(np.uint8)
            yield index, {"image": pixels, "label": int(label)}
