"""Sums over micro-batches: large ones begin with no numbers, and no share gives zeros."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hvd_elastic_keras.step import pieces
from hvd_elastic_keras.step.pieces import RunningSums

SPECS = [tf.TensorSpec([2, 3], tf.float32), tf.TensorSpec([], tf.float64), tf.TensorSpec([0])]


def summed(count: tf.Tensor) -> list[tf.Tensor]:
    """Of results i, i, … for each micro-batch i from 1 on."""
    running = RunningSums(SPECS, count)

    def body(i: tf.Tensor, sums: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
        results = [tf.fill(s.shape, tf.cast(i + 1, s.dtype)) for s in SPECS]
        return i + 1, running.add(i, sums, results)

    _, sums = tf.while_loop(
        lambda i, _: i < count,
        body,
        (tf.constant(0), running.start()),
        shape_invariants=(tf.TensorShape([]), running.shapes()),
    )
    ended = running.end(sums)
    assert [s.shape for s in ended] == [s.shape for s in SPECS]
    return ended


@pytest.mark.parametrize("large_bytes", [0, 10, 1000], ids=["all large", "one large", "none large"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "graph"])
def test_so_many_micro_batches_add_up(
    monkeypatch: pytest.MonkeyPatch, large_bytes: int, compiled: bool
) -> None:
    monkeypatch.setattr(pieces, "LARGE_BYTES", large_bytes)
    function = tf.function(summed, autograph=False) if compiled else summed
    for count in (0, 1, 2, 5):
        for found, spec in zip(function(tf.constant(count)), SPECS, strict=True):
            expected = np.full(spec.shape, count * (count + 1) / 2)
            np.testing.assert_array_equal(found.numpy(), expected)
            assert found.dtype == spec.dtype


def test_a_large_sum_holds_no_numbers_before_the_first_micro_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pieces, "LARGE_BYTES", 10)
    before = [int(tf.size(t)) for t in RunningSums(SPECS, tf.constant(3)).start()]
    without_share = [int(tf.size(t)) for t in RunningSums(SPECS, tf.constant(0)).start()]
    assert (before, without_share) == ([0, 1, 0], [6, 1, 0])
