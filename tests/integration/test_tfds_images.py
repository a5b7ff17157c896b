"""The real tensorflow-datasets path, offline: the bundled digits as a prepared data set."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hvd_elastic_keras import TfdsSource
from hvd_elastic_keras.api.model_module import ModelModule
from hvd_elastic_keras.common.batch_plan import Share
from hvd_elastic_keras.common.errors import DataError
from hvd_elastic_keras.data.plan.partition import Partition
from hvd_elastic_keras.data.sources.source import as_source
from model_zoo import digits, tfds_images
from tests.harness import tfds_stand_in, warm_python
from tests.harness.faults import Fault
from tests.harness.job import FAULT_MODEL, SMALL, Job, assert_same_weights

NAME = "bundled_digits"
FORMATS = ("tfrecord", "array_record")
TFDS_MODEL = FAULT_MODEL.with_name("tfds_model.py")
PREPARE = """
import sys
import model_zoo.digits_tfds, tensorflow_datasets as tfds
for file_format in sys.argv[2:]:
    directory = f"{sys.argv[1]}/{file_format}"
    builder = tfds.builder("bundled_digits", data_dir=directory, file_format=file_format)
    builder.download_and_prepare()
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a directory with a data directory for each file format."""
    directory = tmp_path_factory.mktemp("tfds")
    warm_python.run("-c", PREPARE, directory, *FORMATS, log=directory / "log")
    return directory


def read(data: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns all examples, in the order of the files."""
    source = as_source(data, seed=0, shuffle=False, name="the data")
    count = source.num_examples
    _, (images, labels) = next(source.batches(0, Partition(count, count, count), Share(0, 1), 0))
    return images.numpy(), labels.numpy()


@pytest.mark.slow(but=("tfrecord",))
@pytest.mark.parametrize("file_format", FORMATS)
def test_the_examples_are_those_that_were_prepared(file_format: str, prepared: Path) -> None:
    data = tfds_images.load(NAME, "train", str(prepared / file_format), image_size=8)
    images, labels = read(data)
    expected_images, expected_labels = digits.load("train")
    found = sorted((int(y), x.round(2).tobytes()) for x, y in zip(images, labels, strict=True))
    pixels = np.float32(np.round(expected_images * 255)) / np.float32(255)
    expected = zip(pixels, expected_labels, strict=True)
    assert found == sorted((int(y), x.round(2).tobytes()) for x, y in expected)


@pytest.mark.slow(but=("array_record",))
@pytest.mark.parametrize("file_format", FORMATS)
def test_parts_of_a_split_make_up_the_whole(file_format: str, prepared: Path) -> None:
    def records(split: str) -> list[bytes]:
        source = TfdsSource(NAME, split, prepared / file_format)
        return source.__getitems__(range(len(source)))

    first, second = records("train[:90%]"), records("train[90%:]")
    assert (len(first), len(second)) == (1293, 144)
    assert first + second == records("train")
    assert TfdsSource(NAME, "test", prepared / file_format)[7] == records("test")[7]


def test_images_are_resized_after_sharding(prepared: Path) -> None:
    data = tfds_images.load(NAME, "test", str(prepared / "tfrecord"), image_size=16)
    images, _ = read(data)
    assert images.shape == (360, 16, 16, 1)
    assert 0 <= images.min() < images.max() <= 1


def test_a_data_set_that_is_not_prepared_is_reported_with_the_command(tmp_path: Path) -> None:
    command = rf"tfds.builder\('mnist', data_dir='{tmp_path}'\).download_and_prepare\(\)"
    with pytest.raises(DataError, match=command):
        tfds_images.load("mnist", "train", str(tmp_path), image_size=28)
    with pytest.raises(DataError, match=r"import model_zoo.digits_tfds, tensorflow_datasets"):
        tfds_images.load(NAME, "train", str(tmp_path), image_size=8)


ZOO = {
    "mnist": ("mnist_cnn", "mnist", "test", (28, 28, 1), (28, 28, 1), 10),
    "cifar10": ("resnet50", "cifar10", "test", (32, 32, 3), (32, 32, 3), 10),
    "imagenet2012": ("resnet50", "imagenet2012", "validation", (256, 256, 3), (60, 90, 3), 1000),
}
"""Facts about each data set.

Model and configuration of the zoo, the split for validation, the image shape that these need, the
image shape in the files (any with ImageNet), and the number of classes.
"""


def stand_in(name: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepares a data set as its real builder describes it, but with a few made-up images."""
    *_, validation, _, shape, classes = ZOO[name]
    random = np.random.default_rng(0)

    def examples(count: int) -> Iterator[tfds_stand_in.Example]:
        for index in range(count):
            image = random.integers(0, 256, shape, np.uint8)
            yield {"image": image, "label": (index * 7 + 1) % classes}

    splits = {"train": examples(9), validation: examples(4)}
    tfds_stand_in.prepare(name, directory, splits, monkeypatch)


@pytest.mark.parametrize("name", ZOO)
def test_the_configurations_of_the_zoo_load_through_tfds(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, config_name, _, shape, _, classes = ZOO[name]
    stand_in(name, tmp_path, monkeypatch)
    config = importlib.import_module(f"model_zoo.{model}.configs.{config_name}").get_config()
    module = ModelModule(model, config=config, seed=0, data_dir=str(tmp_path))
    for split, count in (("train", 9), ("validation", 4)):
        images, labels = read(module.dataset(split))
        assert images.shape == (count, *shape)
        assert 0 <= images.min() < 0.1
        assert 0.9 < images.max() <= 1
        assert sorted(labels) == sorted((index * 7 + 1) % classes for index in range(count))


def test_what_there_is_not_is_reported(prepared: Path) -> None:
    with pytest.raises(DataError, match="has no data set no_such_data"):
        TfdsSource("no_such_data", "train", prepared / "tfrecord")
    with pytest.raises(DataError, match="has no split 'validation', expected one of"):
        TfdsSource(NAME, "validation", prepared / "tfrecord")


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("file_format", FORMATS)
def test_a_kill_changes_nothing(file_format: str, prepared: Path, tmp_path: Path) -> None:
    command = (f"--model={TFDS_MODEL}", f"--data_dir={prepared / file_format}", *SMALL)
    with Job(tmp_path / "undisturbed", "--num_workers=1", command=command) as undisturbed:
        undisturbed.finish()
    plan = [Fault("kill", "train", 1, step=11, size=2)]
    with Job(tmp_path / "killed", "--num_workers=2", command=command, plan=plan) as job:
        job.finish()
        assert job.plan.happened("kill")
        assert_same_weights(job.weights(), undisturbed.weights())
