"""Assertions of a step hold in each worker's part of it, and fail there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from hvd_elastic_keras.step.partition.captured_step import CapturedStep, capture
from hvd_elastic_keras.step.partition.collectives import WorkerCollectives
from hvd_elastic_keras.step.partition.execution import PartialStep
from hvd_elastic_keras.step.partition.one_round import OneRound
from hvd_elastic_keras.step.partition.part import Part
from hvd_elastic_keras.step.partition.planning.analysis import analysed
from tests.harness.lockstep import AloneCollectives, take_step

GOOD = np.arange(1.0, 19.0).reshape(6, 3)
BAD = np.where(np.arange(6)[:, None] == 4, -GOOD, GOOD)
"""Row 4 is negative: it belongs to the second worker of `SHARES`."""
SHARES = ([2, 4], [2, 4, 0])
LEAST = tf.constant(165.0, tf.float64)
Check = Callable[[Any], Any]
OF_ROWS: dict[str, Check] = {
    "each number": lambda x: tf.debugging.assert_positive(x, message="seen"),
    "whole numbers": lambda x: tf.debugging.assert_greater(tf.cast(x, tf.int32), 0, "seen"),
    "a condition by hand": lambda x: tf.debugging.Assert(tf.reduce_all(x > 0), ["seen", x]),
    "numbers that are not finite": lambda x: tf.debugging.check_numerics(tf.math.log(x), "seen"),
    "in a branch": lambda x: tf.cond(
        tf.shape(x)[0] > 3,
        lambda: tf.debugging.check_numerics(tf.math.log(x), "seen"),
        lambda: x,
    ),
}
OF_SUMS: dict[str, Check] = {
    "a sum": lambda x: tf.debugging.assert_greater(tf.reduce_sum(x), LEAST, "seen"),
    "a sum by hand": lambda x: tf.debugging.Assert(tf.reduce_sum(x) > 165.0, ["seen", x]),
    "of both": lambda x: tf.debugging.Assert(
        tf.reduce_all(x > -99.0) & (tf.reduce_sum(x) > 165.0), ["seen"]
    ),
    "a logarithm of a sum": lambda x: tf.debugging.check_numerics(
        tf.math.log(tf.reduce_sum(x) - 165.0), "seen"
    ),
}


def step_with(check: Check) -> CapturedStep:
    def step(x: Any) -> Any:
        check(x)
        return {"mean": tf.reduce_mean(x)}

    return capture(step, tf.TensorSpec([None, 3], tf.float64))


@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("name", [*OF_ROWS, *OF_SUMS])
def test_an_assertion_fails_as_in_the_step_of_one_worker(name: str, shares: Sequence[int]) -> None:
    step = step_with((OF_ROWS | OF_SUMS)[name])
    analysis = analysed(step, 6)
    for verify in (False, True):
        outputs, _ = take_step(step, analysis, [GOOD], shares, verify=verify)
        np.testing.assert_allclose(outputs, [GOOD.mean()])
    with pytest.raises(tf.errors.InvalidArgumentError, match="seen"):
        take_step(step, analysis, [BAD], shares)


@pytest.mark.parametrize("name", OF_ROWS)
def test_an_assertion_of_rows_takes_no_collective(name: str) -> None:
    analysis = analysed(step_with(OF_ROWS[name]), 6)
    assert [c.what for c in analysis.collectives] == ["allreduce"], analysis.lines()


def test_whether_all_rows_are_so_can_be_a_value_too() -> None:
    def function(x: Any) -> Any:
        found = tf.reduce_all(x > 0, 0)
        tf.debugging.Assert(tf.reduce_all(x > -99), [x])
        return tf.where(found, x, 0.0 * x), tf.cond(found[0], lambda: 1, lambda: 2)

    step = capture(function, tf.TensorSpec([None, 3], tf.float64))
    for batch in (GOOD, BAD):
        expected = step.function(tf.constant(batch), tf.constant(0, tf.int64))
        found, _ = take_step(step, analysed(step, 6), [batch], [2, 0, 4], verify=True)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", [*OF_ROWS, *OF_SUMS])
def test_an_assertion_fails_in_a_graph_that_does_not_need_it(name: str) -> None:
    step = step_with((OF_ROWS | OF_SUMS)[name])
    analysis = analysed(step, 6)

    def partial(rows: Any, has_rows: Any) -> Any:
        size = tf.shape(rows)[0]
        part = Part(tf.constant(0), size, size, has_rows, has_rows)
        return PartialStep(
            step, analysis, part, WorkerCollectives(AloneCollectives(), has_rows)
        ).compute([rows])

    function = tf.function(partial, autograph=False)
    function(tf.constant(GOOD), tf.constant(True))
    with pytest.raises(tf.errors.InvalidArgumentError, match="seen"):
        function(tf.constant(BAD), tf.constant(True))
    if name in OF_ROWS:  # what it stands at is no row
        function(tf.constant(BAD), tf.constant(False))


def test_before_the_round_nothing_is_asserted_that_follows_from_its_sums() -> None:
    step = step_with(OF_SUMS["a sum"])
    one_round = OneRound(step, analysed(step, 6))

    def before(rows: Any) -> list[Any]:
        part = Part(*map(tf.constant, (0, 2, 6)), tf.constant(True))
        return [g.tensor for g in one_round.before([rows], part, tf.constant(0, tf.int64))]

    tf.function(before, autograph=False)(tf.constant(GOOD[:2]))
