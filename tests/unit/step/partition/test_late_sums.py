"""Sums for which nobody waits travel with the last ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from hvd_elastic_keras.step.partition.captured_step import capture
from hvd_elastic_keras.step.partition.plan import Analysis
from hvd_elastic_keras.step.partition.planning.analysis import analysed
from tests.harness.lockstep import assert_close, take_step

layers = keras.layers
ROWS, SHARES = 7, [4, 0, 3]


def stepped(step: Any, rows: Any) -> tuple[Analysis, dict[str, Any], list[Any]]:
    """The analysis, the variables after a step by their names, and what it returns."""
    captured = capture(lambda data: step(data[0]), (tf.TensorSpec([None, 2], rows.dtype),))
    analysis = analysed(captured, ROWS)
    outputs, values = take_step(captured, analysis, [rows], SHARES, verify=True)
    return analysis, {captured.variables[n].name: v for n, v in values.items()}, outputs


def test_gradients_do_not_travel_with_what_batch_norm_waits_for() -> None:
    keras.utils.set_random_seed(1)
    blocks = [layer for _ in range(3) for layer in (layers.Dense(4), layers.BatchNormalization())]
    model = keras.Sequential([keras.Input((4,)), *blocks, layers.Dense(1)])
    model.compile("sgd", "mse")
    random = np.random.default_rng(1)
    batch = random.normal(size=(8, 4)).astype("float32"), np.ones((8, 1), "float32")
    model._symbolic_build(data_batch=batch)
    spec = tuple(tf.TensorSpec([None, *b.shape[1:]], b.dtype) for b in batch)
    captured = capture(model.train_step, spec)
    analysis = analysed(captured, 8)
    last = max(c.level for c in analysis.collectives)
    kernels = [c for c in analysis.collectives if c.num_bytes >= 4 * 4 * 4]
    assert len(kernels) == 3
    assert {c.level for c in kernels} == {last}
    _, values = take_step(captured, analysis, batch, [3, 5])
    tf.function(model.train_step)(batch)
    for name, variable in captured.variables.items():
        assert_close(values[name], variable.numpy(), variable.name, 1e-5, 1.0)


def test_a_variable_that_is_read_again_for_a_later_round_is_assigned_before_it() -> None:
    total, seen = (tf.Variable(tf.zeros([2], tf.float64), name=n) for n in ("total", "seen"))

    def step(x: Any) -> Any:
        total.assign_add(tf.reduce_sum(x, 0))  # its sum is needed early: the next line reads it
        seen.assign_add(tf.reduce_sum(x**2, 0))  # nobody waits for this one
        spread = tf.reduce_sum(tf.abs(x - total), 0)
        seen.assign(seen * 2.0)
        return tf.reduce_sum(tf.abs(x - spread)), seen + 1.0

    rows = np.random.default_rng(1).normal(size=(ROWS, 2))
    analysis, values, (result, after) = stepped(step, rows)
    assert analysis.num_rounds == 3
    levels = {c.tensor: c.level for c in analysis.collectives}
    assert sorted(levels.values()) == [1, 2, 3, 3], "\n".join(analysis.lines())
    all_rows = rows.sum(0)
    spread = np.abs(rows - all_rows).sum(0)
    np.testing.assert_allclose(values["total:0"], all_rows)
    np.testing.assert_allclose(values["seen:0"], 2.0 * (rows**2).sum(0))
    np.testing.assert_allclose(result, np.abs(rows - spread).sum())
    np.testing.assert_allclose(after, 2.0 * (rows**2).sum(0) + 1.0)
