"""Scenes of several bundled digits, and masks that say which digit each pixel belongs to."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from model_zoo import digits

NUM_CLASSES = 11
"""0 is background, d + 1 is the digit d."""
INK = 0.3
"""Pixels with a value above this belong to a digit."""
NOISE = 0.1
_SIZE = 16
"""Height and width of a digit in a scene: 8x8 pixels, each doubled."""


def make(
    split: str, count: int, digits_per_side: int = 2
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
    """Returns noisy scenes: squares of cells, with a digit at a random place in each cell.

    "validation" and "train" use different images of digits.

    Returns:
      Images of shape [count, s, s, 1] in [0, 1] and masks of shape [count, s, s], where s is 20
      times `digits_per_side`.
    """
    random = np.random.default_rng([0, split == "train"])
    images, labels = digits.load(split)
    cell = _SIZE + 4
    side = digits_per_side * cell
    scenes = np.zeros((count, side, side, 1), np.float32)
    masks = np.zeros((count, side, side), np.int32)
    for scene, mask in zip(scenes, masks, strict=True):
        for corner in np.ndindex(digits_per_side, digits_per_side):
            which = random.integers(len(images))
            digit = images[which].repeat(2, 0).repeat(2, 1)
            row, column = np.array(corner) * cell + random.integers(0, cell - _SIZE + 1, 2)
            place = np.s_[row : row + _SIZE, column : column + _SIZE]
            scene[place] = digit
            mask[place] = np.where(digit[..., 0] > INK, labels[which] + 1, 0)
    noisy = scenes + random.normal(0, NOISE, scenes.shape)
    return np.clip(noisy, 0, 1).astype(np.float32), masks
