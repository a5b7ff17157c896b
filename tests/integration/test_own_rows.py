"""Each worker prepares its own rows of a `tf.data` pipeline, through joins and kills."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness.fault_model import FaultPoint
from tests.harness.fit_job import FitJob, FitResult, gate, kill_of_root
from tests.harness.fit_scenario import Scenario, scenario
from tests.harness.recorded_fit import Script

Alone = Callable[[Scenario], FitResult]
AUTO = tf.data.AUTOTUNE


def folder_of_pictures() -> Path:
    """Writes the same small pictures of different sizes, in another folder on each worker."""
    folder = Path(tempfile.mkdtemp(prefix="hvd-test-pictures-"))
    draw = np.random.default_rng(0)
    for number in range(80):
        (folder / "ab"[number % 2]).mkdir(exist_ok=True)
        size = draw.integers(6, 12, 2)
        picture = draw.integers(0, 255, (*size, 3)).astype(np.uint8)
        path = folder / "ab"[number % 2] / f"{number:02}.png"
        path.write_bytes(tf.io.encode_png(picture).numpy())
    return folder


def small_model() -> keras.Model:
    model = keras.Sequential(
        [FaultPoint(), keras.layers.Flatten(), keras.layers.Dense(2, activation="softmax")]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


@scenario(plain=True)
def pictures_of_a_folder(script: Script) -> None:
    """Reads pictures as Keras's tutorials do, looks at a batch first, and scales batches."""
    folder = folder_of_pictures()
    training, validation = keras.utils.image_dataset_from_directory(
        folder,
        validation_split=0.25,
        subset="both",
        seed=4,
        image_size=(8, 8),
        batch_size=12,
        verbose=False,
    )
    next(iter(training.take(1)))
    training = training.map(lambda x, y: (x / 255.0, y)).prefetch(AUTO)
    validation = validation.map(lambda x, y: (x / 255.0, y))
    script.fit(small_model(), training, epochs=4, validation_data=validation)


@scenario(plain=False)
def augmented_in_parallel(script: Script) -> None:
    """Augments in parallel calls, as most scripts do, which plain Keras cannot repeat."""
    draw = np.random.default_rng(1)
    pictures, labels = draw.random((60, 8, 8, 3), np.float32), np.arange(60) % 2
    flip = keras.layers.RandomFlip("horizontal")

    def augmented(picture: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        picture = tf.image.random_brightness(flip(picture, training=True), 0.2)
        return tf.image.random_crop(picture, [6, 6, 3]), label

    data = tf.data.Dataset.from_tensor_slices((pictures, labels)).shuffle(60)
    data = data.map(augmented, num_parallel_calls=AUTO).batch(12).prefetch(AUTO)
    script.fit(small_model(), data, epochs=4)


def test_a_folder_of_pictures_is_trained_on_as_by_plain_keras(
    tmp_path: Path, fit_alone: Alone
) -> None:
    plan = [gate(7), kill_of_root("train", step=14)]
    flags = ("--num_workers=2", "--audit")
    with FitJob(tmp_path, pictures_of_a_folder, *flags, plan=plan) as job:
        job.let_join("gate")
        job.finish_with(["w1", "w2"], fit_alone(pictures_of_a_folder))
        assert "every worker prepares all examples" not in job.output


@pytest.mark.parametrize("deterministic", [False, True])
def test_random_augmentation_does_not_depend_on_the_workers(
    tmp_path: Path, deterministic: bool
) -> None:
    flags = ("--deterministic",) if deterministic else ()
    with FitJob(tmp_path / "one", augmented_in_parallel, "--num_workers=1", *flags, plan=[]) as one:
        one.finish()
        assert one.output.count("x: random numbers in map(...) follow from the number") == 1
        expected = one.result("w0")
    plan = [gate(6), kill_of_root("train", step=12)]
    with FitJob(
        tmp_path / "three", augmented_in_parallel, "--num_workers=2", *flags, plan=plan
    ) as job:
        job.let_join("gate")
        job.finish_with(["w1", "w2"], expected, tolerance=0 if deterministic else 1e-5)
