"""The cheapest tensors to reduce, against all there are."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_keras.step.partition.planning.min_vertex_cut import min_vertex_cut

NODES = 6
EDGES = [(a, b) for a, b in itertools.combinations(range(NODES), 2)]


def is_cut(
    removed: set[int], edges: list[tuple[int, int]], sources: set[int], sinks: set[int]
) -> bool:
    found = set(sources) - removed
    todo = list(found)
    while todo:
        node = todo.pop()
        new = {b for a, b in edges if a == node} - removed - found
        found |= new
        todo += new
    return not found & sinks


@given(
    costs=st.lists(st.integers(1, 5), min_size=NODES, max_size=NODES),
    edges=st.lists(st.sampled_from(EDGES), unique=True),
    sources=st.sets(st.integers(0, NODES - 1)),
    sinks=st.sets(st.integers(0, NODES - 1)),
)
def test_no_other_cut_costs_less(
    costs: list[int], edges: list[tuple[int, int]], sources: set[int], sinks: set[int]
) -> None:
    found = min_vertex_cut(dict(enumerate(costs)), edges, sources, sinks)
    assert is_cut(found, edges, sources, sinks)
    least = min(
        sum(costs[n] for n in some)
        for count in range(NODES + 1)
        for some in itertools.combinations(range(NODES), count)
        if is_cut(set(some), edges, sources, sinks)
    )
    assert sum(costs[n] for n in found) == least


def test_of_equal_cuts_it_is_the_one_next_to_the_sinks() -> None:
    chain = [("half", "single"), ("single", "scaled")]
    assert min_vertex_cut(
        dict.fromkeys(("half", "single", "scaled"), 4), chain, ["half"], ["scaled"]
    ) == {"scaled"}
