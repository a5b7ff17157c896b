"""Whole steps: any number of workers with uneven shares come to what one traced step comes to."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from hvd_elastic_keras.step.check_step import check_step, out_of_order
from hvd_elastic_keras.step.partition import rules
from hvd_elastic_keras.step.partition.captured_step import CapturedStep, capture
from hvd_elastic_keras.step.partition.collectives import WorkerCollectives
from hvd_elastic_keras.step.partition.execution import PartialStep
from hvd_elastic_keras.step.partition.part import Part
from hvd_elastic_keras.step.partition.plan import Analysis
from hvd_elastic_keras.step.partition.planning.analysis import analysed
from hvd_elastic_keras.step.partition.planning.liveness import without_rows
from hvd_elastic_keras.step.partition.rules.states import PARTIAL, REPLICATED, Decision, How, View
from tests.harness.lockstep import AloneCollectives, assert_close, take_step
from tests.harness.partitioned_models import MODELS, ROWS, Made, half_precision
from tests.harness.partitioned_models.rounds import ROUNDS

SHARES = [5, 4, 3], [1, 0, 11]
"""Of the rows, in the first and in the second step."""
EXACT = 1e-10
"""Relative, in double precision; but for what is 0 in truth, such as a bias before batch norm."""
EXACT_OF = {"speech with lengths": 1e-6}
"""TensorFlow computes CTC in single precision."""
QUICK = (
    "flooding",
    "a mean over valid labels",
    "Barlow twins",
    "a ring of keys",
    "counts and a codebook",
    "embeddings under Adam with clipnorm",
    "a large table under Adam with clipnorm",
    "two large tables, one looked up twice",
    "a chain of tags",
    "batch norm",
    "steps that are not finite are left out",
    "gradients that are summed up by hand",
    "a batch until it fits",
    "metrics of whole batches",
)


@pytest.fixture
def double_precision() -> Iterator[None]:
    floats, policy = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(floats)
    keras.config.set_dtype_policy(policy)


def captured_of(made: Made) -> tuple[CapturedStep, list[Any], Any]:
    """The step, two batches, and the plain step."""
    model, batch = made
    if model._compile_loss is not None:
        model._symbolic_build(data_batch=batch)
    spec = tf.nest.map_structure(lambda b: tf.TensorSpec([None, *b.shape[1:]], b.dtype), batch)
    captured = capture(model.train_step, spec)
    plain = tf.function(model.train_step, autograph=False).get_concrete_function(spec)
    return captured, [batch, tf.nest.map_structure(lambda b: np.roll(b, 2, 0), batch)], plain


def values_of(captured: CapturedStep) -> dict[str, Any]:
    return {name: v.numpy() for name, v in captured.variables.items()}


def assign(captured: CapturedStep, values: dict[str, Any]) -> None:
    for name, variable in captured.variables.items():
        variable.assign(values[name])


def check(made: Made, exact: float, verify: bool = False) -> Analysis:
    """Takes two steps; verify: each decision of the second is checked by itself."""
    captured, batches, plain = captured_of(made)
    analysis = analysed(captured, ROWS)
    before = values_of(captured)
    expected = []
    for batch in batches:
        logs = plain(tf.nest.map_structure(tf.constant, batch))
        expected.append((tf.nest.flatten(logs), values_of(captured)))
    changed = [n for n, value in expected[-1][1].items() if not np.array_equal(value, before[n])]
    assert changed, "a step that learns nothing shows nothing"
    assign(captured, before)
    for i, (batch, shares) in enumerate(zip(batches, SHARES, strict=True)):
        logs, values = expected[i]
        outputs, found = take_step(
            captured, analysis, tf.nest.flatten(batch), shares, verify=verify and i == 1
        )
        for name, value in values.items():
            what = f"{captured.variables[name].name} after step {i}"
            assert_close(found[name], value, what, exact, 1e-3)
        for one, other in zip(tf.nest.flatten(captured.results(outputs)), logs, strict=True):
            assert_close(one, other, f"the logs of step {i}", exact, 1e-3)
        if 0 in shares:
            check_without_rows(captured, analysis, tf.nest.flatten(batch), shares, (outputs, found))
        assign(captured, found)
    return analysis


def check_without_rows(
    captured: CapturedStep,
    analysis: Analysis,
    flat: list[Any],
    shares: list[int],
    expected: tuple[list[Any], dict[str, Any]],
) -> None:
    """A worker without rows may leave out what others compute for the round of collectives."""
    idle = without_rows(analysis)
    outputs, values = take_step(captured, analysis, flat, shares, idle=idle)
    for one, other in zip(outputs, expected[0], strict=True):
        np.testing.assert_array_equal(one, other)
    for name, value in values.items():
        np.testing.assert_array_equal(value, expected[1][name])


@pytest.mark.usefixtures("double_precision")
@pytest.mark.slow(but=QUICK)
@pytest.mark.parametrize("name", MODELS)
def test_any_workers_come_to_what_one_comes_to(name: str) -> None:
    keras.utils.set_random_seed(1)
    analysis = check(MODELS[name](), EXACT_OF.get(name, EXACT), verify=name in QUICK)
    assert analysis.num_rounds <= ROUNDS[name], "\n".join(analysis.lines())


SENT_AS_ROWS = {
    "a large table under Adam": True,
    "a large table under Adam with clipnorm": True,
    "two large tables, one looked up twice": True,
    "embeddings under Adam with clipnorm": False,
    "a large table with tied weights": False,
}
"""Whether rows of tables travel. Of tied weights, the whole table has to travel anyway."""


@pytest.mark.parametrize("name", SENT_AS_ROWS)
def test_rows_of_tables_travel_if_they_are_fewer_bytes_than_the_tables(name: str) -> None:
    captured, _, _ = captured_of(MODELS[name]())
    tables = [v for v in captured.variables.values() if v.trainable and "embeddings" in v.name]
    sent = analysed(captured, ROWS).collectives
    assert tables
    for table in tables:
        size = table.shape.num_elements() * table.dtype.size
        assert any(c.num_bytes == size for c in sent) != SENT_AS_ROWS[name]
    rows = [c for c in sent if c.what == "allgather" and c.num_bytes]
    assert bool(rows) == SENT_AS_ROWS[name]


def test_half_precision_is_summed_where_it_is_cast_to_single_precision() -> None:
    keras.utils.set_random_seed(1)
    check(half_precision(), 5e-3)


@pytest.mark.parametrize("name", ["flooding", "a chain of tags"])
def test_a_worker_can_check_the_plan_for_several_by_itself(name: str) -> None:
    keras.utils.set_random_seed(1)
    captured, (batch, _), _ = captured_of(MODELS[name]())
    before = values_of(captured)
    assert check_step(captured, analysed(captured, 12), tf.nest.flatten(batch), [7, 5]) == []
    for one, other in zip(values_of(captured).values(), before.values(), strict=True):
        np.testing.assert_array_equal(one, other, err_msg="nothing is assigned")


@pytest.mark.slow(but=("a Dice loss",))
@pytest.mark.parametrize("name", ["an LSTM and a GRU backwards, with masks", "a Dice loss"])
def test_the_same_operations_can_be_added_to_a_graph(name: str) -> None:
    keras.utils.set_random_seed(1)
    captured, (batch, _), plain = captured_of(MODELS[name]())
    analysis = analysed(captured, ROWS)

    def partitioned(*rows: Any) -> dict[str, Any]:
        numbers = (tf.constant(0), tf.shape(rows[0])[0], tf.shape(rows[0])[0], tf.constant(True))
        step = PartialStep(
            captured, analysis, Part(*numbers), WorkerCollectives(AloneCollectives())
        )
        step.compute(rows)
        return step.variables.values

    spec = [tf.TensorSpec([None, *b.shape[1:]], b.dtype) for b in batch]
    function = tf.function(partitioned, autograph=False, input_signature=spec)
    found = function(*map(tf.constant, batch))
    plain(*map(tf.constant, batch))
    for tensor, value in values_of(captured).items():
        assert_close(found[tensor], value, captured.variables[tensor].name, 1e-5, 1e-3)


def _mean_of_own_rows(v: View) -> Decision:
    decision = rules.reductions.reduction(v)
    return v.only(0, PARTIAL) if decision.how == How.MEAN else decision


def _linear(v: View) -> Decision:
    if PARTIAL in v.ins:
        return v.run(*v.ins, out=PARTIAL)
    return rules.elementwise.elementwise(v)


WRONG = {
    "Mean": (_mean_of_own_rows, "batch norm"),
    "RealDiv": (_linear, "a Dice loss"),
    "DivNoNan": (_linear, "weights that make a mean"),
    "L2Loss": (lambda v: v.run(v.ins[0], out=PARTIAL), "gradients clipped in the step"),
}
"""Rules that are wrong, by operation, each with a model that has it."""


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_rule_is_found_at_its_operation(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rule, name = WRONG[kind]
    monkeypatch.setitem(rules.RULES, kind, rule)
    keras.utils.set_random_seed(1)
    captured, (batch, _), _ = captured_of(MODELS[name]())
    problems = check_step(captured, analysed(captured, 12), tf.nest.flatten(batch), [4, 4, 4])
    assert problems[0].startswith(kind) or f"{{{{node {kind}" in problems[0], problems


def test_rows_that_are_gathered_in_another_order_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    gathered = PartialStep._gathered

    def backwards(self: Any, values: Any, states: Any) -> Any:
        wholes = gathered(self, values, states)
        return [tf.reverse(w, [s.at_axis]) for w, s in zip(wholes, states, strict=True)]

    monkeypatch.setattr(PartialStep, "_gathered", backwards)
    captured, (batch, _), _ = captured_of(MODELS["the hardest half of the batch"]())
    problems = check_step(captured, analysed(captured, 12), tf.nest.flatten(batch), [4, 4, 4])
    assert problems[0].startswith("the rows of"), problems


def test_assignments_that_have_changed_places_are_found() -> None:
    captured, _, _ = captured_of(MODELS["a rate that the step halves"]())
    plan = analysed(captured, ROWS).plan
    assert not list(out_of_order(plan))
    backwards = dataclasses.replace(plan, operations=plan.operations[::-1])
    assert any("learning_rate" in found or "Assign" in found for found in out_of_order(backwards))


def test_each_collective_is_explained() -> None:
    keras.utils.set_random_seed(1)
    captured, _, _ = captured_of(MODELS["batch norm"]())
    analysis = analysed(captured, ROWS)
    lines = analysis.lines()
    assert "allreduce" in lines[0]
    assert any("batch_normalization" in line and "bytes" in line for line in lines)
    assert REPLICATED not in analysis.plan.ins[:2]


@pytest.mark.parametrize(("exchanges", "at_once"), [(True, 1), (False, 10)])
def test_collectives_in_a_loop_follow_each_other(exchanges: bool, at_once: int) -> None:
    def step(x: Any) -> Any:
        def turn(i: Any, total: Any) -> Any:
            return i + 1, total + (tf.square(tf.reduce_sum(x)) if exchanges else 1.0)

        return tf.while_loop(lambda i, _: i < 3, turn, (0, 0.0))[1]

    spec = tf.TensorSpec([None, 2])
    captured = capture(step, spec)
    analysis = analysed(captured, ROWS)
    assert any(c.in_loop for c in analysis.collectives) == exchanges

    def partitioned(rows: Any) -> Any:
        count = tf.shape(rows)[0]
        part = Part(tf.constant(0), count, count, tf.constant(True))
        alone = WorkerCollectives(AloneCollectives())
        return PartialStep(captured, analysis, part, alone).compute([rows])

    function = tf.function(partitioned, autograph=False).get_concrete_function(spec)
    loops = [op for op in function.graph.get_operations() if "While" in op.type]
    assert [op.get_attr("parallel_iterations") for op in loops] == [at_once]
    np.testing.assert_allclose(function(tf.ones([4, 2]))[0], 3 * 64.0 if exchanges else 3.0)
