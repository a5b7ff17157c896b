"""What workers note of batches: enough to tell other data from rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from hvd_elastic_keras.common.batch_plan import Share
from hvd_elastic_keras.data.examples import batch_log
from hvd_elastic_keras.data.examples.batch_log import (
    BatchLog,
    Difference,
    description,
    first_difference,
)
from hvd_elastic_keras.data.input.batch_pipeline import BatchPipeline
from hvd_elastic_keras.data.sources.dataset_batches import DatasetBatches

random = np.random.default_rng(0)
IMAGES = random.random((32, 28, 28, 3)).astype("float32")
LABELS = random.integers(0, 10, 32)
TEXTS = np.array([b"text %d" % i for i in range(32)])
RAGGED = tf.ragged.constant([[1, 2], [3], [], [4, 5, 6]])


def tensors(*arrays: Any) -> Any:
    return tuple(tf.constant(a) if isinstance(a, np.ndarray) else a for a in arrays)


def differ(one: Any, other: Any) -> bool:
    logs = [BatchLog(), BatchLog()]
    for log, batch in zip(logs, (one, other), strict=True):
        log.switch(True)
        log.note(0, 0, tensors(*batch))
    return first_difference([log.take() for log in logs]) is not None


def changed(array: Any, index: Any, value: Any) -> Any:
    copy = array.copy()
    copy[index] = value
    return copy


@pytest.mark.parametrize(
    "other",
    [
        (IMAGES[::-1].copy(), LABELS),
        (IMAGES, LABELS[::-1].copy()),
        (IMAGES, changed(LABELS, 5, 11)),
        (changed(IMAGES, 7, IMAGES[8]), LABELS),
        (changed(IMAGES, 31, 0), LABELS),
        (changed(IMAGES, slice(None), IMAGES[:, :, ::-1]), LABELS),
        (IMAGES + 1e-3, LABELS),
        (IMAGES[:31], LABELS[:31]),
        (changed(IMAGES, (0, 0, 0, 0), np.nan), LABELS),
        (random.random(IMAGES.shape).astype("float32"), LABELS),
    ],
)
def test_other_examples_or_another_order_are_told_apart(other: Any) -> None:
    assert differ((IMAGES, LABELS), other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((TEXTS,), (TEXTS[::-1].copy(),)),
        ((RAGGED,), (RAGGED[::-1],)),
        ((tf.ragged.constant([[1], [2, 3]]),), (tf.ragged.constant([[1, 2], [3]]),)),
        ((np.zeros((4, 2)),), (np.zeros((2, 4)),)),
        ((np.array([True, False]),), (np.array([False, True]),)),
    ],
)
def test_so_are_texts_ragged_tensors_and_shapes(one: Any, other: Any) -> None:
    assert differ(one, other)
    assert not differ(one, one)


@pytest.mark.parametrize("scale", [1.0, -1e6, 1e-6])
def test_rounding_is_no_difference(scale: float) -> None:
    x = (random.normal(size=(64, 50)) * scale).astype("float32")
    assert not differ((x, None), (x * np.float32(1 + 2e-7), None))
    assert not differ((changed(x, 3, np.nan), None), (changed(x, 3, np.nan), None))
    zeros = np.zeros((8, 2))
    assert not differ((zeros,), (zeros,))


def test_a_large_batch_is_sampled_to_its_end() -> None:
    x = np.zeros((500, 1000), "float32")
    assert differ((x,), (changed(x, 499, 1.0),))
    assert differ((x,), (changed(x, 250, 1.0),))
    assert len(description(tensors(x, LABELS))) == 1 + 2 * 2


def rows(*notes: tuple[int, int, float]) -> Any:
    """Pass, position and contents of batches."""
    return np.array([[n, p, 0.0, value, value] for n, p, value in notes] or [[-1.0] * 5])


@pytest.mark.parametrize(
    ("by_rank", "expected"),
    [
        ([rows((0, 1, 5), (0, 2, 6)), rows((0, 1, 5), (0, 2, 6))], None),
        ([rows(), rows()], None),
        ([rows((0, 1, 5)), rows((0, 2, 6))], None),  # a newcomer; a batch of its own
        ([rows((0, 1, 5)), rows(), rows((0, 1, 7))], Difference(0, 1, ())),
        ([rows((0, 1, 5)), rows((0, 1, 5)), rows((0, 1, 7))], Difference(0, 1, (2,))),
        ([rows((0, 1, 5)), rows((0, 1, 7)), rows((0, 1, 7))], Difference(0, 1, (0,))),
        ([rows((0, 1, 5)), rows((0, 1, 6)), rows((0, 1, 7))], Difference(0, 1, ())),
        ([rows((1, 0, 1), (0, 9, 1)), rows((1, 0, 2), (0, 9, 2))], Difference(0, 9, ())),
        (
            [rows((0, 1, 1)), rows((0, 1, 1)), rows((0, 1, 1)), rows((0, 1, 2)), rows((0, 1, 3))],
            Difference(0, 1, (3, 4)),
        ),
    ],
)
def test_the_first_batch_that_differs_is_found_and_who_is_outnumbered(
    by_rank: Any, expected: Difference | None
) -> None:
    assert first_difference(by_rank) == expected


def test_a_pipeline_notes_each_batch_once_and_only_while_it_is_told_to() -> None:
    dataset = tf.data.Dataset.from_tensor_slices((IMAGES, LABELS)).batch(8)
    pipeline = BatchPipeline(DatasetBatches(dataset, "x"), lambda size: 4)
    list(pipeline.batches(0, Share(0, 1), 0))
    assert pipeline.log.take()[0, 0] == batch_log.NO_BATCH
    pipeline.log.switch(True)
    list(pipeline.batches(1, Share(1, 2), 2))
    noted = pipeline.log.take()
    assert noted[:, :2].tolist() == [[1, 0], [1, 1], [1, 2], [1, 3]], "replayed ones, too"
    assert noted[3, 2:].tolist() == description(
        (tf.constant(IMAGES[24:]), tf.constant(LABELS[24:]))
    )
    assert pipeline.log.take().shape == (1, noted.shape[1])
    pipeline.log.switch(False)
    list(pipeline.batches(2, Share(0, 2), 0))
    assert len(pipeline.log.take()) == 1


def test_who_has_noted_nothing_in_a_round_gives_rows_that_fit_those_of_others() -> None:
    """A newcomer of a round that begins at the end of an epoch has read the first batch only."""
    batch = tensors(IMAGES, LABELS)
    newcomer, other = BatchLog(), BatchLog()
    newcomer.note(0, 0, batch)
    for log in (newcomer, other):
        log.switch(True)
    other.note(1, 4, batch)
    rows = [log.take() for log in (newcomer, other)]
    assert rows[0].shape == rows[1].shape
    assert first_difference(rows) is None


def test_files_in_a_folder_of_each_workers_own_have_the_same_names_in_the_same_order() -> None:
    def row(*paths: str) -> list[float]:
        return description((tf.constant(paths), tf.constant([0, 1])), in_own_folders=True)

    assert row("/tmp/a/1.png", "/tmp/a/2.png") == row("/tmp/b/1.png", "/tmp/b/2.png")
    assert row("/tmp/a/1.png", "/tmp/a/2.png") != row("/tmp/b/2.png", "/tmp/b/1.png")
