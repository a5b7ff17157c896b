"""Handwritten digits in this folder: 1,797 real 8x8 images, without a download.

Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine
Learning Repository, 1998, doi:10.24432/C50P49, CC BY 4.0 (the test part of that data set).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

FILE = Path(__file__).with_name("data") / "digits.npz"
NUM_VALIDATION = 360
Arrays = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]


def load(split: str) -> Arrays:
    """Returns images of shape [n, 8, 8, 1] in [0, 1] and labels of shape [n], 0 to 9.

    The split into 1,437 "train" and 360 "validation" examples is fixed. The examples are mixed
    before it, because neighbours in the original order come from the same writer.
    """
    with np.load(FILE) as file:
        images, labels = file["images"], file["labels"]
    order = np.random.RandomState(0).permutation(len(labels))
    part = order[:-NUM_VALIDATION] if split == "train" else order[-NUM_VALIDATION:]
    return images[part, :, :, np.newaxis].astype(np.float32) / 16.0, labels[part].astype(np.int64)
