"""Strings in the batch of a partitioned step: looked up by each worker, or sent as numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

tf = pytest.importorskip("tensorflow")

from hvd_elastic_keras.step.partition import horovod_collectives
from hvd_elastic_keras.step.partition.analysis import analysed
from hvd_elastic_keras.step.partition.captured_step import capture
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
