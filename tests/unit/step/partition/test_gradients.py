"""Which sums of a step are gradients, and may travel in 16 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from hvd_elastic_keras.step.check_step import taken_in_threads
from hvd_elastic_keras.step.partition import gradients
from hvd_elastic_keras.step.partition.captured_step import CapturedStep, capture
from hvd_elastic_keras.step.partition.plan import Analysis
from hvd_elastic_keras.step.partition.planning.analysis import analysed

layers, optimizers = keras.layers, keras.optimizers
ROWS = 8
OPTIMIZERS = {
    "sgd": lambda: optimizers.SGD(0.1),
    "momentum": lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: optimizers.Adam(amsgrad=True),
    "adamw, clipped": lambda: optimizers.AdamW(global_clipnorm=1.0),
    "accumulated": lambda: optimizers.Adam(gradient_accumulation_steps=2),
    "averaged": lambda: optimizers.RMSprop(use_ema=True),
    "scaled": lambda: optimizers.LossScaleOptimizer(optimizers.SGD(0.1)),
    "lion": optimizers.Lion,
}


def captured_step(*middle: Any, optimizer: Any = "sgd", metrics: Any = ("mae",)) -> CapturedStep:
    keras.utils.set_random_seed(1)
    first = layers.Dense(4, "tanh", kernel_regularizer="l2")
    model = keras.Sequential([keras.Input((6,)), first, *middle, layers.Dense(3)])
    model.compile(optimizer, "mse", metrics=list(metrics))
    batch = np.ones((ROWS, 6), "float32"), np.ones((ROWS, 3), "float32")
    model.train_on_batch(*batch)
    spec = tuple(tf.TensorSpec([None, *b.shape[1:]], b.dtype) for b in batch)
    return capture(model.train_step, spec)


def rounded_shapes(captured: CapturedStep) -> list[tuple[int, ...]]:
    analysis = analysed(captured, ROWS, half_gradients=True)
    assert analysed(captured, ROWS).rounded == frozenset()
    shapes = [
        tuple(t.shape)
        for tensors in analysis.plan.reductions.values()
        for t in tensors
        if t.name in analysis.rounded
    ]
    return sorted(shapes)


DENSE = [(3,), (4,), (4, 3), (6, 4)]


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_the_gradients_of_all_weights_are_found(optimizer: str) -> None:
    assert rounded_shapes(captured_step(optimizer=OPTIMIZERS[optimizer]())) == DENSE


class Matrix(keras.metrics.Metric):
    """Sums that have the form of a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.total = self.add_weight(shape=(4, 3), initializer="zeros")
        self.rows = self.add_weight(shape=(3,), initializer="zeros")

    def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> None:
        """Adds up."""
        self.total.assign_add(keras.ops.tile(keras.ops.sum(p, 0, keepdims=True), (4, 1)))
        self.rows.assign_add(keras.ops.sum(y * p, 0))

    def result(self) -> Any:
        """A number."""
        return keras.ops.sum(self.total) + keras.ops.sum(self.rows)


def test_a_metric_in_the_form_of_a_weight_is_no_gradient() -> None:
    assert rounded_shapes(captured_step(metrics=[Matrix()])) == DENSE


class Centred(layers.Layer):
    """Subtracts the sum of the batch, which has the form of a weight and leads to all gradients."""

    def call(self, x: Any) -> Any:
        """The rest."""
        return x - keras.ops.sum(x, 0) / 100.0


def test_sums_with_which_rows_are_computed_are_no_gradients() -> None:
    assert rounded_shapes(captured_step(Centred())) == DENSE
    # The sums of its backward pass are gradients as well: they do not travel in 16 bits, either.
    synchronized = layers.BatchNormalization(synchronized=True)
    assert rounded_shapes(captured_step(synchronized)) == DENSE


@pytest.mark.parametrize("where", ["inside", "after"])
def test_a_sum_with_which_rows_are_computed_in_or_after_a_loop_is_no_gradient(where: str) -> None:
    """The loop reads a variable, and the sum has the form of one."""
    read, moved = tf.Variable(tf.ones([6])), tf.Variable(tf.zeros([6]))

    def step(batch: Any) -> Any:
        (x,) = batch
        mean = tf.reduce_mean(x, 0)
        moved.assign(0.9 * moved + 0.1 * mean)
        used = mean if where == "inside" else tf.zeros_like(mean)

        def again(i: Any, rows: Any, passed: Any) -> Any:
            return i + 1, rows - used * read, passed * 1.0

        _, rows, passed = tf.while_loop(lambda i, *_: i < 3, again, (0, x, mean))
        return {"loss": tf.reduce_mean((rows - passed if where == "after" else rows) ** 2)}

    captured = capture(step, (tf.TensorSpec([None, 6]),))
    assert analysed(captured, ROWS, half_gradients=True).rounded == frozenset()


def test_a_frozen_layer_and_what_is_no_sum_of_rows_alone_have_none() -> None:
    frozen = layers.Dense(4)
    frozen.trainable = False
    assert rounded_shapes(captured_step(frozen)) == DENSE
    weight, state = tf.Variable(tf.ones([2, 2])), tf.Variable(tf.ones([2, 2]), trainable=False)

    def step(x: Any) -> None:
        one, other = (tf.matmul(x, y, transpose_a=True) for y in (x, x**2))
        weight.assign_sub((one + state) + other)  # the cheapest sum is that of all three

    captured = capture(lambda data: step(data[0]), (tf.TensorSpec([None, 2]),))
    assert rounded_shapes(captured) == []


def taken(captured: CapturedStep, analysis: Analysis, half: Any) -> list[Any]:
    random = np.random.default_rng(1)
    batch = [random.normal(size=(ROWS, n)).astype("float32") for n in (6, 3)]
    return taken_in_threads(captured, analysis, batch, [3, 0, 5], half=half)


@pytest.mark.parametrize("least_bytes", [gradients.LEAST_BYTES, 1])
def test_weights_follow_from_rounded_gradients_and_metrics_do_not(
    least_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradients, "LEAST_BYTES", least_bytes)
    captured = captured_step(layers.BatchNormalization(synchronized=True))
    exact = taken(captured, analysed(captured, ROWS), None)
    rounded = taken(captured, analysed(captured, ROWS, half_gradients=True), tf.bfloat16)
    for outputs, values in rounded[1:]:  # all workers have the same bits
        for one, other in zip((*outputs, *values.values()), _all(rounded[0]), strict=True):
            np.testing.assert_array_equal(one, other)
    for one, other in zip(rounded[0][0], exact[0][0], strict=True):
        np.testing.assert_array_equal(one, other)
    for name, variable in captured.variables.items():
        one, other = (np.asarray(found[0][1][name]) for found in (rounded, exact))
        is_weight = variable.trainable and variable.shape.rank == 2
        assert np.any(one != other) == is_weight or variable.shape.rank == 1, variable.name
        np.testing.assert_allclose(one, other, atol=2e-2)


def _all(taken: Any) -> tuple[Any, ...]:
    outputs, values = taken
    return (*outputs, *values.values())
