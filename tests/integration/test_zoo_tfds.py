"""Texts and masks of tensorflow-datasets reach the zoo's models through the real builders."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds

from hvd_elastic_keras.api.model_module import ModelModule
from model_zoo.text_transformer.dataset import to_numbers
from tests.harness import tfds_stand_in
from tests.integration.test_tfds_images import read


def module_of(model: str, config: Any, directory: Path) -> ModelModule:
    return ModelModule(model, config=config, seed=0, data_dir=str(directory))


def config_of(model: str, name: str) -> Any:
    return importlib.import_module(f"model_zoo.{model}.configs.{name}").get_config()


def test_reviews_become_numbers_of_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reviews = [{"text": "Good, good film!<br />", "label": 1}, {"text": "bad " * 300, "label": 0}]
    splits = {"train": reviews, "test": reviews[:1], "unsupervised": reviews[:1]}
    tfds_stand_in.prepare("imdb_reviews", tmp_path, splits, monkeypatch)
    config = config_of("text_transformer", "imdb")
    words, labels = read(module_of("text_transformer", config, tmp_path).dataset("train"))
    good, bad = words[labels.argmax()], words[labels.argmin()]
    assert list(good) == list(to_numbers(["good good film br"], config)[0].numpy())
    assert good[0] == good[1] != good[2]
    assert not good[4:].any()
    assert len(set(bad)) == 1
    assert 0 < bad[0] < config.vocabulary_size


def test_windows_of_shakespeare_are_one_byte_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(chr(ord("a") + index % 26) for index in range(1000))
    splits = {name: [{"text": text}] for name in ("train", "validation", "test")}
    tfds_stand_in.prepare("tiny_shakespeare", tmp_path, splits, monkeypatch)
    config = config_of("causal_lm", "tiny_shakespeare")
    module = module_of("causal_lm", config, tmp_path)
    for split, stride in (("train", 64), ("validation", 256)):
        given, wanted = module.dataset(split)
        assert given.shape == wanted.shape == (1 + (1000 - 257) // stride, 256)
        assert bytes(given[1].astype(np.uint8)).decode() == text[stride : stride + 256]
        assert bytes(wanted[1].astype(np.uint8)).decode() == text[stride + 1 : stride + 257]


def test_masks_of_pets_have_the_size_of_the_images_and_classes_from_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    mask = np.full((60, 90, 1), 2, np.uint8)
    mask[:30], mask[:, :45] = 1, 3
    pet = {
        "image": random.integers(0, 256, (60, 90, 3), np.uint8),
        "label": 5,
        "species": 1,
        "segmentation_mask": mask,
        "head_bbox": tfds.features.BBox(0.0, 0.0, 1.0, 1.0),
    }
    splits = {"train": [pet] * 3, "test": [pet]}
    tfds_stand_in.prepare("oxford_iiit_pet", tmp_path, splits, monkeypatch)
    config = config_of("unet", "oxford_iiit_pet")
    images, masks = read(module_of("unet", config, tmp_path).dataset("train"))
    assert images.shape == (3, 128, 128, 3)
    assert masks.shape == (3, 128, 128)
    assert [int(m) for m in (masks[0, 0, 0], masks[0, 0, 127], masks[0, 127, 127])] == [2, 0, 1]
