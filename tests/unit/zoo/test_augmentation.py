"""Augmentation: what a crop shows, who draws it, and the recipe that uses it."""

from __future__ import annotations

from typing import Any

import pytest

keras = pytest.importorskip("keras")

import numpy as np

from model_zoo import augmentation, resnet50
from model_zoo.resnet50.configs import imagenet2012


def coordinates(count: int, side: int) -> Any:
    """Images whose two channels are the row and the column of each pixel."""
    rows, columns = np.mgrid[:side, :side].astype(np.float32)
    return np.repeat(np.stack([rows, columns], -1)[np.newaxis], count, 0)


def test_an_evaluated_image_is_the_middle_pixel_for_pixel() -> None:
    images = coordinates(2, 20)
    cut = augmentation.RandomResizedCrop(8)(images, training=False)
    np.testing.assert_allclose(cut, images[:, 6:14, 6:14], atol=1e-5)


def test_each_image_in_training_gets_a_part_of_its_own_within_the_bounds() -> None:
    keras.utils.set_random_seed(1)
    count, side = 200, 101
    parts = augmentation.RandomResizedCrop(11)(coordinates(count, side), training=True).numpy()
    assert parts.min() >= -1e-4
    assert parts.max() <= side - 1 + 1e-4
    height, width = (np.ptp(parts[..., channel], axis=(1, 2)) / (side - 1) for channel in (0, 1))
    area = height * width
    assert len(np.unique(area.round(6))) > 0.9 * count
    assert augmentation.AREA[0] - 0.01 < area.min() < 0.15
    assert area.max() > 0.85
    small = (height < 0.95) & (width < 0.95)  # others are cut at the border
    ratio = width[small] / height[small]
    assert augmentation.ASPECT[0] - 0.01 < ratio.min() < 0.8
    assert 1.25 < ratio.max() < augmentation.ASPECT[1] + 0.01


def test_a_shifted_image_keeps_its_size_and_whole_pixels() -> None:
    keras.utils.set_random_seed(1)
    inputs = keras.Input((8, 8, 2))
    model = keras.Model(inputs, augmentation.shifted(inputs, 2, mirror=False))
    images = 1 + coordinates(50, 8)
    np.testing.assert_array_equal(model(images, training=False), images)
    shifted = model(images, training=True).numpy()
    assert set(np.unique(shifted.round(4))) == set(range(9))
    shifts = {tuple((image[4, 4] - images[0, 4, 4]).round().astype(int)) for image in shifted}
    assert len(shifts) > 10
    assert np.abs(list(shifts)).max() == 2


def test_the_learning_rate_of_imagenet_warms_up_for_5_epochs_and_falls_to_0_in_90() -> None:
    config = imagenet2012.get_config()
    rate = resnet50.optimizer(config)._learning_rate
    epoch = -(-1_281_167 // config.global_batch_size)
    rates = [float(rate(epochs * epoch)) for epochs in (0, 2.5, 5, 47.5, 90)]
    np.testing.assert_allclose(rates, [0, 0.2, 0.4, 0.2, 0], atol=1e-4)


def test_smoothed_labels_cost_what_their_formula_says() -> None:
    config = imagenet2012.get_config()
    config.num_classes = 4
    probabilities = np.array([[0.7, 0.1, 0.1, 0.1], [0.2, 0.5, 0.2, 0.1]], np.float32)
    found = resnet50.loss(config)(np.array([[0], [1]]), probabilities)
    share = config.label_smoothing
    targets = (1 - share) * np.eye(4)[:2] + share / 4
    np.testing.assert_allclose(found, -(targets * np.log(probabilities)).sum(-1), rtol=1e-5)
