"""The mean and the variance over rows, in one round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

tf = pytest.importorskip("tensorflow")

from hvd_elastic_keras.step.partition import execution
from hvd_elastic_keras.step.partition.captured_step import capture
from hvd_elastic_keras.step.partition.moments import combined
from hvd_elastic_keras.step.partition.plan import Analysis
from hvd_elastic_keras.step.partition.planning.analysis import analysed
from tests.harness.lockstep import take_step

Function = Callable[[Any], Any]


def planned(function: Function, x: Any) -> tuple[Any, Analysis]:
    captured = capture(
        lambda data: function(data[0]), (tf.TensorSpec([None, *x.shape[1:]], x.dtype),)
    )
    return captured, analysed(captured, len(x))


def kept_axes(x: Any) -> Any:
    """As batch norm does, and what follows from both."""
    mean, variance = tf.nn.moments(x, [0, 1], keepdims=True)
    return mean, variance, (x - mean) * tf.math.rsqrt(variance + 1e-3)


FORMS: dict[str, Function] = {
    "with the axes": kept_axes,
    "without the axes": lambda x: tf.nn.moments(x, [1, 0]),
    "the rows alone": lambda x: tf.nn.moments(x, [0]),
    "rows along another axis": lambda x: tf.nn.moments(tf.transpose(x, [2, 1, 0]), [-1, 1]),
    "a standard deviation": lambda x: tf.math.reduce_std(x, [0, 2]),
    "two at once": lambda x: [*tf.nn.moments(x, [0]), *tf.nn.moments(2.0 * x, [0, 1])],
}


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=5)
@given(
    shares=st.lists(st.integers(0, 5), min_size=1, max_size=4).map(lambda s: [s[0] + 2, *s[1:]]),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    mean=st.sampled_from([0.0, 1.0, 1e6]),
    seed=st.integers(0, 99),
)
def test_any_shares_have_the_moments_of_the_whole(
    name: str, shares: list[int], shape: tuple[int, int], mean: float, seed: int
) -> None:
    x = mean + np.random.default_rng(seed).normal(size=(sum(shares), *shape))
    captured, analysis = planned(FORMS[name], x)
    found, _ = take_step(captured, analysis, [x], shares, verify=True)
    sums = {c.level for c in analysis.collectives if c.reason != "the logs"}
    assert len(sums) == 1, "\n".join(analysis.lines())
    expected = tf.nest.flatten(FORMS[name](tf.constant(x)))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


def test_a_large_mean_takes_nothing_from_a_small_variance() -> None:
    true = np.random.default_rng(1).normal(1000.0, 0.01, (600, 4)).astype("float32")
    captured, analysis = planned(lambda x: tf.nn.moments(x, [0]), true)
    (mean, variance), _ = take_step(captured, analysis, [true], [400, 0, 199, 1])
    np.testing.assert_allclose(mean, true.astype(float).mean(0), rtol=1e-6)
    # A mean square less a squared mean would be off by more than all of it.
    np.testing.assert_allclose(variance, true.astype(float).var(0), rtol=1e-2)


def test_a_wrong_combination_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_own_rows(gathered: Any, found: Any) -> Any:
        """As if nobody else had any."""
        return combined(gathered[:1], found)

    monkeypatch.setattr(execution, "combined", of_own_rows)
    x = np.random.default_rng(2).normal(size=(6, 2))
    captured, analysis = planned(lambda x: tf.nn.moments(x, [0]), x)
    with pytest.raises(AssertionError, match="moments/mean"):
        take_step(captured, analysis, [x], [1, 5], verify=True)


OTHERS: dict[str, Function] = {
    "about another mean": lambda x: tf.reduce_mean(
        tf.math.squared_difference(x, tf.reduce_mean(2.0 * x, 0, True)), 0
    ),
    "over other axes": lambda x: tf.reduce_mean(
        tf.math.squared_difference(x, tf.reduce_mean(x, [0, 1], True)), 0
    ),
    "about a mean that is broadcast otherwise": lambda x: tf.reduce_mean(
        tf.math.squared_difference(x[:, 0], tf.reduce_mean(x[:, 0], 0)[::-1]), 0
    ),
    "of a large tensor": lambda x: tf.nn.moments(tf.tile(x, [1, 1, 10_000]), [0])[1],
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_only_looks_like_a_variance_takes_two_rounds(name: str) -> None:
    x = np.random.default_rng(2).normal(size=(6, 2, 2))
    captured, analysis = planned(OTHERS[name], x)
    (found,), _ = take_step(captured, analysis, [x], [1, 5], verify=True)
    assert {c.what for c in analysis.collectives} == {"allreduce"}
    assert analysis.num_rounds == 2
    np.testing.assert_allclose(found, OTHERS[name](tf.constant(x)), rtol=1e-9)


def test_batch_norm_takes_one_round_forward_and_one_backward() -> None:
    keras = pytest.importorskip("keras")
    keras.utils.set_random_seed(1)
    blocks = [
        layer
        for _ in range(3)
        for layer in (keras.layers.Dense(4), keras.layers.BatchNormalization())
    ]
    model = keras.Sequential([keras.Input((4,)), *blocks, keras.layers.Dense(1)])
    model.compile("adam", "mse")
    x, y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
    model._symbolic_build(data_batch=(x, y))
    spec = tuple(tf.TensorSpec([None, *b.shape[1:]], b.dtype) for b in (x, y))
    analysis = analysed(capture(model.train_step, spec), 8)
    assert analysis.num_rounds == 3 + 3 + 1, "\n".join(analysis.lines())
