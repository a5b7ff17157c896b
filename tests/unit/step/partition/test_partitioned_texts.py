"""Strings in the batch of a partitioned step: looked up by each worker, or sent as numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

tf = pytest.importorskip("tensorflow")

from hvd_elastic_keras.step.partition import horovod_collectives
from hvd_elastic_keras.step.partition.captured_step import capture
from hvd_elastic_keras.step.partition.planning.analysis import analysed
from tests.harness.lockstep import take_step


@given(drawn=st.lists(st.tuples(st.binary(max_size=5), st.binary(max_size=2)), max_size=4))
def test_strings_are_the_same_after_they_were_bytes(drawn: list[tuple[bytes, bytes]]) -> None:
    given = tf.constant(drawn, tf.string, shape=[len(drawn), 2])
    lengths, values = horovod_collectives.as_bytes(given)
    assert lengths.shape == given.shape
    np.testing.assert_array_equal(horovod_collectives.from_bytes(lengths, values), given)


def test_each_worker_looks_up_its_own_rows() -> None:
    rows = tf.lookup.KeyValueTensorInitializer(["a", "b"], tf.constant([3, 5], tf.int64))
    table = tf.lookup.StaticHashTable(rows, -1)

    def function(words: Any) -> Any:
        return [tf.reduce_sum(tf.one_hot(table.lookup(words), 6), 0)]

    step = capture(function, tf.TensorSpec([None, 2], tf.string))
    analysis = analysed(step, 5)
    assert [c.what for c in analysis.collectives] == ["allreduce"]
    words = np.array([["a", "b"], ["c", "a"], ["b", "b"], ["a", "d"], ["b", "a"]], object)
    found, _ = take_step(step, analysis, [words], [2, 0, 3], verify=True)
    (expected,) = step.function(tf.constant(words), tf.constant(0, tf.int64))
    np.testing.assert_array_equal(found[0], expected)


def test_texts_and_labels_of_the_same_open_length_are_compared_row_by_row() -> None:
    """An accuracy of padded texts: each batch has another length, and both leave it open."""

    def function(data: Any) -> Any:
        texts, labels = data
        mask = tf.cast(labels != 0, tf.float32)
        same = tf.cast(texts == labels, tf.float32)
        return [tf.reduce_sum(same * mask) / tf.reduce_sum(mask)]

    step = capture(function, (tf.TensorSpec([None, None], tf.int32),) * 2)
    analysis = analysed(step, 6)
    assert {c.what for c in analysis.collectives} == {"allreduce"}
    texts = np.random.default_rng(0).integers(0, 3, (6, 5)).astype("int32")
    labels = np.random.default_rng(1).integers(0, 3, (6, 5)).astype("int32")
    found, _ = take_step(step, analysis, [texts, labels], [2, 1, 3], verify=True)
    (expected,) = step.function(tf.constant(texts), tf.constant(labels), tf.constant(0, tf.int64))
    np.testing.assert_allclose(found[0], expected, rtol=1e-6)
