"""A dataset that can only be read from the front: replaying tells how far it is."""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import pytest
import tensorflow as tf

from hvd_elastic_keras.common.batch_plan import Share
from hvd_elastic_keras.common.errors import DataError
from hvd_elastic_keras.common.events import RecordsSkipped
from hvd_elastic_keras.data.input.pipeline import Pipeline
from hvd_elastic_keras.data.plan.partition import Partition
from hvd_elastic_keras.data.sources import reader as reader_module
from hvd_elastic_keras.data.sources.source import ExampleSource, as_source
from hvd_elastic_keras.observe import notices as notices_module
from hvd_elastic_keras.observe.notices import Notice, notices

PARTITION = Partition(1000, 10, 5)
WHOLE = Share(0, 2)


@pytest.fixture
def source() -> ExampleSource:
    dataset = tf.data.Dataset.range(1000)
    return as_source(dataset, seed=0, shuffle=True, name="the training data")


def test_a_quick_replay_says_nothing(source: ExampleSource, told: list[str]) -> None:
    _, batch = next(source.batches(0, PARTITION, WHOLE, 50))
    np.testing.assert_array_equal(batch, range(500, 510))
    assert told == []


def test_a_long_replay_tells_how_far_it_is_and_once_how_to_avoid_it(
    source: ExampleSource, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices_module, "LINE_INTERVAL_S", 0.0)  # every drawing is due
    monkeypatch.setattr(reader_module, "LONG_REPLAY_S", 0.0)
    monkeypatch.setattr(reader_module, "_hinted", set())
    for epoch in range(2):
        next(source.batches(epoch, PARTITION, WHOLE, 50))
    lines = [t for t in told if t.startswith("reading the training data again up to the current")]
    assert any("25 of 50 batches (50%)" in line for line in lines)
    assert len([t for t in told if "TFRecordSource" in t]) == 1


def test_the_next_step_of_the_same_epoch_needs_no_replay(source: ExampleSource) -> None:
    found = [next(source.batches(0, PARTITION, Share(0, 1), step)) for step in (3, 3, 4)]
    for (ids, batch), step in zip(found, (3, 3, 4), strict=True):
        np.testing.assert_array_equal(ids, range(10 * step, 10 * step + 5))
        np.testing.assert_array_equal(batch, ids)


def test_positions_of_a_dataset_are_its_indices(source: ExampleSource) -> None:
    np.testing.assert_array_equal(source.order(3).indices(tf.range(5)), range(5))


def test_notices_wait_for_somebody_who_shows_them() -> None:
    notices.report_to(None)
    entry = RecordsSkipped(count=1, records=[])
    notices.tell("first", entry)
    assert notices.report_to(None) == [Notice("first", entry)]
    assert notices.report_to(None) == []


@pytest.mark.parametrize("num_examples", [25, 20])
def test_drop_remainder_leaves_out_the_smaller_step(num_examples: int) -> None:
    source = as_source(np.arange(num_examples), seed=0, shuffle=True, name="the data")
    pipeline = Pipeline(source, 10, 5, drop_remainder=True)
    assert pipeline.steps_per_epoch == 2
    batches = list(pipeline.batches(0, WHOLE, 0))
    assert [len(b.data) for b in batches] == [10, 10]


def test_drop_remainder_that_leaves_nothing_is_refused() -> None:
    source = as_source(np.arange(9), seed=0, shuffle=True, name="the data")
    with pytest.raises(DataError, match="leaves no step of an epoch of 9 examples"):
        Pipeline(source, 10, 5, drop_remainder=True)


def test_the_first_batch_is_kept_until_the_training_reads() -> None:
    asked: list[int] = []

    class Counted:
        def __len__(self) -> int:
            return 100

        def __getitem__(self, index: int) -> np.int64:
            asked.append(index)
            return np.int64(index)

    source = as_source(Counted(), seed=0, shuffle=True, name="the data")
    pipeline = Pipeline(source, 10, 5)
    asked.clear()
    first = pipeline.first_batch()
    assert pipeline.first_batch() is first
    assert len(asked) == 10
    np.testing.assert_array_equal(next(pipeline.batches(0, WHOLE, 0)).data, first)
    assert pipeline.first_batch() is not first
