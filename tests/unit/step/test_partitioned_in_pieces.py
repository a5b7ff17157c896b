"""What a partitioned step does beside its results: in pieces, late, and where memory runs out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import pytest
import tensorflow as tf

keras = pytest.importorskip("keras")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras.common.batch_plan import Share
from hvd_elastic_keras.data.examples.structure import Layout
from hvd_elastic_keras.data.input.pipeline import Pipeline
from hvd_elastic_keras.data.sources.source import as_source
from hvd_elastic_keras.keras_internals.model_variables import variables_of
from hvd_elastic_keras.step import partitioned_step
from hvd_elastic_keras.step.deterministic_step import DeterministicStep
from hvd_elastic_keras.step.partition.one_round import NotOneRoundError
from hvd_elastic_keras.step.partitioned_step import PartitionedStep
from hvd_elastic_keras.step.step_options import StepOptions
from hvd_elastic_keras.step.world import World

layers = keras.layers
SPEC = (tf.TensorSpec([None, 6]), tf.TensorSpec([None, 1]))


class Calling(layers.Layer):
    """Calls Python code with its weights."""

    def build(self, _: Any) -> None:
        """A weight."""
        self.weight = self.add_weight(shape=(), initializer="ones")

    def call(self, x: Any) -> Any:
        """Times what the code returns."""
        one = tf.numpy_function(lambda w: np.float32(1), [self.weight.value], tf.float32)
        return x * tf.ensure_shape(one, [])


class OtherSums(keras.metrics.Metric):
    """Counts in double precision."""

    def __init__(self) -> None:
        super().__init__(name="sums")
        self.total = self.add_weight(shape=(), initializer="zeros", name="total", dtype="float64")

    def update_state(self, y: Any, *_: Any, **__: Any) -> None:
        """Adds up."""
        self.total.assign_add(keras.ops.sum(keras.ops.cast(y, "float64")))

    def result(self) -> Any:
        """The sum."""
        return self.total


def step_of(
    *more: Any, kind: type[PartitionedStep] = PartitionedStep, metrics: Any = (), **options: Any
) -> PartitionedStep:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((6,)), layers.Dense(4, "relu"), *more, layers.Dense(1)])
    model.compile("sgd", "mse", metrics=list(metrics))
    model.optimizer.build(model.trainable_variables)
    model.train_on_batch(np.ones([2, 6], np.float32), np.ones([2, 1], np.float32))
    return kind(
        model,
        variables_of(model),
        Layout(SPEC),
        World(),
        train=True,
        num_rows=8,
        options=StepOptions(**options),
    )


def traced(function: Any, step: PartitionedStep) -> Any:
    """The graph of a function of a step, which nobody runs."""
    assert step.analysis
    signature = [step._batch.flat_spec, tf.TensorSpec([None], tf.int64)]
    made = tf.function(function, input_signature=signature, autograph=False)
    return made.get_concrete_function().graph


def that_run(graph: Any) -> Iterator[Any]:
    """Operations on which an output depends, or what is done besides."""
    todo, seen = [*(t.op for t in graph.outputs), *graph.control_outputs], set()
    while todo:
        op = todo.pop()
        if op not in seen:
            seen.add(op)
            yield op
            todo += [*(t.op for t in op.inputs), *op.control_inputs]


@pytest.mark.parametrize("kind", [PartitionedStep, DeterministicStep])
def test_a_step_in_pieces_does_not_compute_all_rows_too(kind: type[PartitionedStep]) -> None:
    step = step_of(kind=kind)
    whole = traced(step._together, step)
    assert [op for op in that_run(whole) if op.type == "MatMul"]
    pieces = traced(step._in_pieces, step)
    assert not [op for op in that_run(pieces) if op.type == "MatMul"]


def test_a_step_that_calls_python_is_not_taken_in_pieces_each_of_which_would_call_it() -> None:
    step = step_of(Calling())
    with pytest.raises(NotOneRoundError):
        traced(step._in_pieces, step)


def test_a_step_with_several_collectives_is_not_repeated_where_others_wait() -> None:
    one, two = step_of(), step_of(metrics=[OtherSums()])
    for step in (one, two):
        traced(step._together, step)
        assert step.analysis.num_rounds == 1
        step.world.size = 2
    assert one._is_repeatable
    assert not two._is_repeatable
    two.world.size = 1
    assert two._is_repeatable


def test_a_late_worker_looks_at_finite_numbers_only_when_its_state_has_come() -> None:
    step = step_of(skips_nonfinite=True)
    whole = traced(step._together, step)
    assert [op for op in that_run(whole) if op.type == "IsFinite"]
    sums = traced(step.sums_of_all, step)
    assert not [op for op in that_run(sums) if op.type == "IsFinite"]


def test_the_first_step_after_others_have_left_is_repeated_in_pieces_when_memory_runs_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = step_of(together=None)
    x = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
    source = Pipeline(as_source((x, x[:, :1]), seed=0, shuffle=False, name="x"), 8, 2)
    (batch,) = source.batches(0, Share(0, 4), 0)
    before = [v.numpy() for v in step.model.variables]
    whole, ran_out, alone = step._graph_of_several, [], []

    def without_memory(*args: Any) -> Any:
        if step.world.size == 1:
            ran_out.append(True)
            raise tf.errors.ResourceExhaustedError(None, None, "as if")
        return whole(*args)

    monkeypatch.setattr(step, "_graph_of_several", without_memory)
    monkeypatch.setattr(step, "_alone", lambda *args: alone.append(args))
    step.world.has_others.assign(False)  # collectives of one process, that would do nothing
    step.world.size = 2
    step(batch, 0)
    step.world.size = 1
    for variable, value in zip(step.model.variables, before, strict=True):
        variable.assign(value)
    step(batch, 1)
    assert ran_out == [True]
    assert not alone
    found = [v.numpy() for v in step.model.trainable_variables]
    for variable, value in zip(step.model.variables, before, strict=True):
        variable.assign(value)
    step.model.train_on_batch(x, x[:, :1])
    for one, variable in zip(found, step.model.trainable_variables, strict=True):
        np.testing.assert_allclose(one, variable.numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("begins_alone", "alone_for_long_s", "last"),
    [(True, 300.0, "own"), (False, 300.0, "of several"), (False, 0.0, "own")],
)
def test_whom_others_have_left_takes_its_own_graph_if_that_has_run_or_will_pay_off(
    begins_alone: bool, alone_for_long_s: float, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitioned_step, "ALONE_FOR_LONG_S", alone_for_long_s)
    step = step_of(together=None)
    step._begins_alone = begins_alone
    x = np.ones((8, 6), np.float32)
    source = Pipeline(as_source((x, x[:, :1]), seed=0, shuffle=False, name="x"), 8, 2)
    (batch,) = source.batches(0, Share(0, 4), 0)
    step.world.has_others.assign(False)
    taken = []
    for number, size in enumerate((1, 2, 1, 1)):
        step.world.size = size
        own = mock.patch.object(step, "_alone", side_effect=lambda *_: taken.append("own"))
        several = mock.patch.object(
            step, "_taken_with_others", side_effect=lambda *_: taken.append("of several")
        )
        with own, several:
            step(batch, number)
    assert taken == ["own", "of several", "of several", last]
