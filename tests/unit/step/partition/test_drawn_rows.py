"""Workers draw their own rows of what has a seed: bit for bit those of the whole draw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

tf = pytest.importorskip("tensorflow")

from hvd_elastic_keras.step.partition.captured_step import capture
from hvd_elastic_keras.step.partition.collectives import WorkerCollectives
from hvd_elastic_keras.step.partition.execution import PartialStep
from hvd_elastic_keras.step.partition.part import Part
from hvd_elastic_keras.step.partition.plan import Analysis
from hvd_elastic_keras.step.partition.planning.analysis import analysed
from hvd_elastic_keras.step.partition.rules.states import How
from tests.harness.lockstep import AloneCollectives, take_step

FLOATS = ("float16", "bfloat16", "float32", "float64")
WHOLE_NUMBERS = ("int32", "int64", "uint32", "uint64")


def hows(analysis: Analysis) -> list[How]:
    """How random numbers are drawn."""
    draws = ("StatelessRandom", "StatelessTruncated")
    planned = [p for p in analysis.plan.operations if p.op.type.startswith(draws)]
    return [p.decision.how for p in planned if not p.op.type.endswith("Counter")]


def compared(function: Any, shares: list[int]) -> Analysis:
    """Draws whole and by several workers; all bits are to be the same."""
    step = capture(function, tf.TensorSpec([None, 1]))
    analysis = analysed(step, sum(shares))
    x = np.zeros([sum(shares), 1], "float32")
    found, _ = take_step(step, analysis, [x], shares)
    whole = step.function(tf.constant(x), tf.constant(0, tf.int64))
    for one, other in zip(found, whole, strict=True):
        assert one.dtype == other.numpy().dtype
        assert one.tobytes() == other.numpy().tobytes()
    return analysis


@settings(max_examples=40)
@given(
    dtype=st.sampled_from([*FLOATS, *WHOLE_NUMBERS]),
    shares=st.lists(st.integers(0, 6), min_size=1, max_size=3).map(lambda s: [s[0] + 2, *s[1:]]),
    inner=st.lists(st.integers(1, 5), max_size=2),
    times=st.integers(1, 3),
    seed=st.integers(-9, 2**40),
)
def test_a_worker_draws_the_bits_of_its_rows(
    dtype: str, shares: list[int], inner: list[int], times: int, seed: int
) -> None:
    def function(x: Any) -> list[Any]:
        shape = [times * tf.shape(x)[0], *inner]
        seeds = tf.constant([seed, 3], tf.int64)
        uniform = tf.random.stateless_uniform
        if dtype in WHOLE_NUMBERS:
            drawn = [uniform(shape, seeds, None, None, dtype)]
        else:
            drawn = [uniform(shape, seeds, dtype=dtype)]
            drawn.append(tf.random.stateless_normal(shape, seeds, dtype=dtype))
        if dtype in ("int32", "int64"):
            drawn.append(uniform(shape, seeds, 1, 77, dtype))
        return [tf.identity(d) for d in drawn]

    assert set(hows(compared(function, shares))) == {How.DRAW}


DRAWN_WHOLE = {
    "of an unknown number of bits": lambda x: tf.random.stateless_truncated_normal(
        [tf.shape(x)[0], 3], [1, 2]
    ),
    "rows along another axis": lambda x: tf.random.stateless_uniform([3, tf.shape(x)[0]], [1, 2]),
    "rows along both axes": lambda x: tf.random.stateless_uniform([tf.shape(x)[0]] * 2, [1, 2]),
    "without rows": lambda x: x + tf.random.stateless_uniform([5, 1], [1, 2])[0],
    "from a counter of one's own": lambda x: tf.raw_ops.StatelessRandomUniformV2(
        shape=[tf.shape(x)[0], 3], key=np.uint64([7]), counter=np.uint64([2**64 - 1, 5]), alg=1
    ),
}


@pytest.mark.parametrize("name", DRAWN_WHOLE)
def test_other_draws_are_drawn_whole_by_every_worker(name: str) -> None:
    analysis = compared(lambda x: [tf.identity(DRAWN_WHOLE[name](x))], [2, 3, 4])
    assert hows(analysis) == [How.RUN]


def test_what_everybody_wants_whole_takes_no_collective() -> None:
    def function(x: Any) -> list[Any]:
        rows = tf.shape(x)[:1]
        return [tf.random.stateless_uniform(rows, [1, 2], None, None, tf.int32)[-1]]

    analysis = compared(function, [2, 3])
    assert not analysis.collectives


def test_in_a_graph_the_whole_is_not_drawn() -> None:
    step = capture(
        lambda x: tf.reduce_sum(x + tf.random.stateless_uniform(tf.shape(x), [1, 2])),
        tf.TensorSpec([None, 1]),
    )

    analysis = analysed(step, 9)

    def partial(rows: Any) -> Any:
        part = Part(*map(tf.constant, (2, 3, 9)), tf.constant(False))
        collectives = WorkerCollectives(AloneCollectives())
        return PartialStep(step, analysis, part, collectives).compute([rows])

    graph = tf.function(partial, autograph=False).get_concrete_function(tf.TensorSpec([3, 1])).graph
    assert count_needed(graph, "StatelessRandomUniformV2") == 1


def count_needed(graph: Any, kind: str) -> int:
    """Operations of a kind that the outputs of a graph follow from."""
    needed, todo = set(), [t.op for t in graph.outputs]
    while todo:
        op = todo.pop()
        if op not in needed:
            needed.add(op)
            todo += [t.op for t in op.inputs]
    return sum(op.type == kind for op in needed)
