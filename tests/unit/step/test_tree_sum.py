"""Sums by a binary tree: the same bits, however the leaves are divided."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

tf = pytest.importorskip("tensorflow")

from hvd_elastic_keras.step.tree_sum import (
    LEVELS,
    Nodes,
    TreeSum,
    loop,
    sum_of_nodes,
)

Array = npt.NDArray[np.float32]
SIZE = 3
PARTS = [tf.TensorSpec([None, SIZE]), tf.TensorSpec([], tf.int64)]
NODES = [tf.TensorSpec([None, SIZE]), *[tf.TensorSpec([None], tf.int64)] * 2]


def nodes_of_part(leaves: Any, first: Any) -> Any:
    """What one worker computes."""

    def add(i: Any, array: Any) -> Any:
        tree = TreeSum(SIZE, tf.float32, first, array)
        tree.add(leaves[i], 0, first + tf.cast(i, tf.int64))
        return [i + 1, tree.array]

    tree = TreeSum(SIZE, tf.float32, first)
    (array,) = loop(tf.shape(leaves)[0], add, [tree.array])
    nodes = Nodes.of_range(first, first + tf.shape(leaves, tf.int64)[0])
    return tree.with_array(array).vectors(nodes), nodes.levels, nodes.indices


def sum_of_parts(vectors: Any, levels: Any, indices: Any) -> Any:
    """What each worker computes from the nodes of all."""
    return sum_of_nodes(vectors, Nodes(levels, indices))


IN_GRAPH = (
    tf.function(nodes_of_part, input_signature=PARTS, autograph=False),
    tf.function(sum_of_parts, input_signature=NODES, autograph=False),
)
EAGERLY = (nodes_of_part, sum_of_parts)


def tree_sum(leaves: Array, cuts: list[int], functions: Any = IN_GRAPH, order: int = 1) -> Array:
    """The sum, with the leaves divided at `cuts`; the parts arrive in this or in reverse order."""
    of_part, of_all = functions
    bounds = [0, *sorted(min(c, len(leaves)) for c in cuts), len(leaves)]
    parts = [
        of_part(tf.constant(leaves[low:high]), tf.constant(low, tf.int64))
        for low, high in itertools.pairwise(bounds)
    ]
    columns = [tf.concat(column, 0) for column in zip(*parts[::order], strict=True)]
    return np.asarray(of_all(*columns))


def expected_sum(leaves: Array) -> Array:
    """By the definition, in NumPy."""

    def node(first: int, size: int) -> Array:
        if size == 1:
            return leaves[first]
        return node(first, size // 2) + node(first + size // 2, size // 2)

    first, parts = 0, []
    for level in reversed(range(LEVELS)):
        if len(leaves) >> level & 1:
            parts.append(node(first, 1 << level))
            first += 1 << level
    result = parts.pop()
    while parts:
        result = parts.pop() + result
    return result


ROW = st.tuples(*[st.floats(width=32, allow_nan=False)] * SIZE)
LEAVES = st.lists(ROW, min_size=1, max_size=40).map(lambda rows: np.array(rows, np.float32))
CUTS = st.lists(st.integers(0, 40), max_size=6)


@settings(max_examples=50)
@given(LEAVES, CUTS, st.sampled_from([1, -1]))
@example(np.full((5, SIZE), -0.0, np.float32), [1, 2, 3], 1)
@example(np.array([[1e38, 1e-45, -0.0]] * 7, np.float32), [3, 3, 6], -1)
def test_the_bits_do_not_depend_on_how_the_leaves_are_divided(
    leaves: Array, cuts: list[int], order: int
) -> None:
    assert tree_sum(leaves, cuts, order=order).tobytes() == tree_sum(leaves, []).tobytes()


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.integers(1, 40), CUTS)
def test_the_sum_is_that_of_the_definition(seed: int, count: int, cuts: list[int]) -> None:
    random = np.random.default_rng(seed)
    scale = 10.0 ** random.integers(-9, 9, (count, SIZE))
    leaves = (random.normal(size=(count, SIZE)) * scale).astype(np.float32)
    assert tree_sum(leaves, cuts).tobytes() == expected_sum(leaves).tobytes()


@pytest.mark.parametrize("count", [1, 6, 8])
def test_eager_and_compiled_sums_have_the_same_bits(count: int) -> None:
    leaves = np.random.default_rng(count).normal(size=(count, SIZE)).astype(np.float32)
    assert tree_sum(leaves, [2], EAGERLY).tobytes() == tree_sum(leaves, []).tobytes()


@pytest.mark.parametrize(
    ("levels", "indices", "count"),
    [
        ([1, 0, -1], [0, 2, -1], 3),
        ([-1], [-1], 0),
        ([1, 0], [0, 3], 0),  # leaf 2 is missing
        ([0], [1], 0),
        ([], [], 0),
    ],
)
def test_levels_below_zero_do_not_count_and_without_all_nodes_the_sum_is_zero(
    levels: list[int], indices: list[int], count: int
) -> None:
    vectors = np.ones((len(levels), SIZE), np.float32) * 2.0 ** np.maximum(levels, 0)[:, None]
    expected = np.full(SIZE, float(count), np.float32)
    assert IN_GRAPH[1](vectors.astype(np.float32), levels, indices).numpy().tobytes() == (
        expected.tobytes()
    )


@settings(max_examples=50)
@given(st.integers(0, 200), st.integers(0, 200))
def test_a_range_is_made_up_of_the_fewest_nodes_in_its_order(first: int, size: int) -> None:
    nodes = Nodes.of_range(tf.constant(first, tf.int64), tf.constant(first + size, tf.int64))
    found = [(int(i) << int(n), int(i + 1) << int(n)) for n, i in zip(*of(nodes), strict=True)]
    bounds = [first, *(high for _, high in found)]
    assert [low for low, _ in found] == bounds[:-1]
    assert bounds[-1] == first + size
    assert len(found) <= 2 * max(1, size.bit_length())
    # No two of them are the halves of a node.
    halves = [(a, b) for a, b in itertools.pairwise(found) if same_parent(a, b)]
    assert halves == []


def of(nodes: Nodes) -> tuple[Any, Any]:
    return nodes.levels.numpy(), nodes.indices.numpy()


def same_parent(a: tuple[int, int], b: tuple[int, int]) -> bool:
    size = a[1] - a[0]
    return size == b[1] - b[0] and a[0] // size % 2 == 0
