"""A worker without rows computes only what follows from the round of collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from hvd_elastic_keras.step.partition import gradients
from hvd_elastic_keras.step.partition.captured_step import CapturedStep, capture
from hvd_elastic_keras.step.partition.collectives import WorkerCollectives
from hvd_elastic_keras.step.partition.execution import PartialStep
from hvd_elastic_keras.step.partition.part import Part
from hvd_elastic_keras.step.partition.plan import Analysis
from hvd_elastic_keras.step.partition.planning import analysis as analysis_module
from hvd_elastic_keras.step.partition.planning.analysis import analysed
from hvd_elastic_keras.step.partition.planning.liveness import without_rows, without_unused_copies
from tests.harness.lockstep import take_step

layers = keras.layers
ROWS = 8
OF_ROWS = {"MatMul", "While", "StatelessWhile", "ResourceGather", "GatherV2", "Tanh"}
"""Operations that these models compute of rows only."""


@tf.custom_gradient
def squared(x: Any) -> Any:
    """A square, as a user writes it with a gradient."""
    return x * x, lambda upstream: 2.0 * x * upstream


def dense() -> Any:
    return keras.Sequential([keras.Input((6,)), layers.Dense(4, "tanh"), layers.Dense(1)])


def recurrent() -> Any:
    return keras.Sequential([keras.Input((5, 6)), layers.LSTM(3), layers.Dense(1)])


def table() -> Any:
    return keras.Sequential(
        [keras.Input((3,), dtype="int32"), layers.Embedding(900, 2), layers.Flatten()]
    )


MODELS = {
    "dense": (dense, "mse", ["mae"]),
    "recurrent": (recurrent, "mse", ["mae"]),
    "a table": (table, "mse", []),
    "a gradient of one's own": (dense, lambda y, p: squared(y - p), []),
}


def step_of(name: str) -> tuple[CapturedStep, list[Any]]:
    """The step of a model, and a batch."""
    keras.utils.set_random_seed(1)
    build, loss, metrics = MODELS[name]
    model = build()
    model.compile("adam", loss, metrics=metrics)
    (given,) = model.inputs
    x = np.arange(ROWS * np.prod(given.shape[1:])).reshape(ROWS, *given.shape[1:]) % 7
    batch = x.astype(given.dtype), np.ones((ROWS, *model.output_shape[1:]), "float32")
    model.train_on_batch(*batch)
    spec = tuple(tf.TensorSpec([None, *b.shape[1:]], b.dtype) for b in batch)
    return capture(model.train_step, spec), list(batch)


def kept(analysis: Analysis) -> set[str]:
    """The kinds of the operations that a worker computes."""
    return {p.op.type for p in analysis.plan.operations if p.zeros is None}


@pytest.mark.parametrize("name", MODELS)
def test_nothing_of_the_rows_is_computed_and_the_step_is_the_same(name: str) -> None:
    captured, batch = step_of(name)
    analysis = analysed(captured, ROWS)
    idle = without_rows(analysis)
    assert OF_ROWS & kept(analysis)
    assert not OF_ROWS & kept(idle)
    expected, after = take_step(captured, analysis, batch, [ROWS, 0])
    outputs, values = take_step(captured, analysis, batch, [ROWS, 0], idle=idle)
    for one, other in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    for variable, value in values.items():
        np.testing.assert_array_equal(value, after[variable])


class Noted:
    """Collectives of one worker that note what they are given."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def summed(self, tensors: Sequence[Any], name: str, *, rounded: bool = False) -> list[Any]:
        """Notes a sum."""
        forms = [(t.dtype, tuple(t.shape)) for t in tensors]
        self.calls.append((name, forms, rounded))
        return [tf.identity(t) for t in tensors]

    def gathered(self, tensors: Sequence[Any], name: str) -> list[Any]:
        """Notes rows, of which there may be any number."""
        self.calls.append((name, [(t.dtype, tuple(t.shape[1:])) for t in tensors]))
        return [tf.identity(t) for t in tensors]


def collectives_of(captured: CapturedStep, analysis: Analysis, batch: list[Any]) -> list[Any]:
    """The collectives in the graph of a step."""
    noted = Noted()

    def step(size: Any, *rows: Any) -> Any:
        has_rows = size > 0
        part = Part(tf.constant(0), tf.maximum(size, 1), tf.constant(ROWS), has_rows, has_rows)
        workers = WorkerCollectives(noted, has_rows)
        partial = PartialStep(captured, analysis, part, workers, tail=lambda _: tf.zeros([2]))
        return partial.compute(rows)

    spec = [tf.TensorSpec([None, *b.shape[1:]], b.dtype) for b in batch]
    signature = [tf.TensorSpec([], tf.int32), *spec]
    tf.function(step, autograph=False, input_signature=signature).get_concrete_function()
    return noted.calls


@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_the_collectives_are_those_of_the_others(
    name: str, rounds: bool, in_parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_parts:
        monkeypatch.setattr(gradients, "LEAST_BYTES", 1)
    captured, batch = step_of(name)
    analysis = analysed(captured, ROWS, half_gradients=rounds)
    expected = collectives_of(captured, analysis, batch)
    assert collectives_of(captured, without_rows(analysis), batch) == expected
    assert any(call[2:] == (True,) for call in expected) == bool(analysis.rounded)


def test_a_graph_that_knows_more_of_the_shapes_sends_the_same_tensors() -> None:
    """A worker that joins takes its step in two graphs, one of them for any single row."""
    weights = [tf.Variable(1.0), tf.Variable(2.0)]

    def centred(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            products = [w * (x - tf.reduce_mean(x, 0)) for w, x in zip(weights, batch, strict=True)]
            loss = tf.reduce_mean(tf.square(products[0] + products[1] - 1))
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss

    spec = (tf.TensorSpec([None, None]),) * 2
    captured = capture(centred, spec)
    analysis = analysed(captured, ROWS)

    def numbers_of_tensors(batch: Any) -> dict[str, int]:
        # A collective of large tensors is traced in two branches.
        return {call[0]: len(call[1]) for call in collectives_of(captured, analysis, batch)}

    expected = numbers_of_tensors(spec)
    assert sorted(expected.values()) == [1, 2, 2]
    assert numbers_of_tensors([tf.TensorSpec([1, 1])] * 2) == expected


def test_a_step_that_sends_texts_stays_as_it_is() -> None:
    counted = tf.Variable(0, dtype=tf.int64)

    def texts(batch: Any) -> Any:
        (x,) = batch
        unique, _ = tf.unique(tf.reshape(x, [-1]))
        counted.assign_add(tf.size(unique, tf.int64))
        return {"count": counted}

    captured = capture(texts, (tf.TensorSpec([None, 1], tf.string),))
    analysis = analysed(captured, ROWS)
    assert (analysis.num_rounds, analysis.ends_with_groups) == (1, True)
    assert without_rows(analysis) is analysis


def test_only_operations_that_are_planned_twice_leave_a_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    captured, _ = step_of("dense")
    plan = analysed(captured, ROWS).plan
    assert without_unused_copies(plan) == plan
    monkeypatch.setattr(analysis_module, "without_unused_copies", lambda plan: plan)
    whole = analysed(captured, ROWS).plan
    count = Counter(p.op for p in whole.operations)
    left = {p.op for p in plan.operations}
    assert len(plan.operations) < len(whole.operations)
    assert {op for op, number in count.items() if number == 1} <= left


class Curious(keras.Model):
    """Computes something of the whole batch. Whether it is needed says `look`."""

    def __init__(self, look: str = "") -> None:
        super().__init__()
        self.look = look
        self.dense = layers.Dense(1)
        self.largest = self.add_weight(shape=(), initializer="zeros", trainable=False)
        self.seeds = keras.random.SeedGenerator(3)

    def call(self, x: Any) -> Any:
        """A prediction."""
        return self.dense(x)

    def train_step(self, data: Any) -> Any:
        """As Keras, and a look at the whole batch."""
        x = data[0]
        middle = tf.sort(tf.reduce_sum(x, axis=1))[tf.shape(x)[0] // 2]
        keras.random.uniform([3], seed=self.seeds)
        if self.look == "kept":
            self.largest.assign(middle)
        elif self.look == "shown":
            tf.py_function(lambda value: None, [middle], [])
        logs = super().train_step(data)
        return logs | ({"middle": middle} if self.look == "returned" else {})


@pytest.mark.parametrize("look", ["", "kept", "shown", "returned"])
def test_only_what_somebody_needs_is_computed(look: str) -> None:
    model = Curious(look)
    model.compile("sgd", "mse")
    batch = np.ones((ROWS, 3), "float32"), np.ones((ROWS, 1), "float32")
    model.train_on_batch(*batch)
    spec = tuple(tf.TensorSpec([None, *b.shape[1:]], b.dtype) for b in batch)
    captured = capture(model.train_step, spec)
    analysis = analysed(captured, ROWS)
    assert ({"Sort", "TopKV2"} & kept(analysis) != set()) == bool(look)
    assert any(c.what == "allgather" for c in analysis.collectives) == bool(look)
    # The generator of seeds counts draws, even if nobody looks at what was drawn.
    seeds = [n for n, v in captured.variables.items() if v is model.seeds.state.value]
    assert len(seeds) == 1
    assert set(seeds) <= captured.assigned
