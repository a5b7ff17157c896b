"""Finds a set of nodes of least cost that cuts all paths through a graph.

A minimum vertex cut is the counterpart of a maximum flow (Ford and Fulkerson, "Maximal flow through
a network", 1956). The maximum flow is found in phases (Dinic, "Algorithm for solution of a problem
of maximum flow in networks", 1970).
"""

from __future__ import annotations

import collections
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)
SOURCE, SINK = 0, 1


def min_vertex_cut(
    cost: Mapping[Node, int],
    edges: Iterable[tuple[Node, Node]],
    sources: Iterable[Node],
    sinks: Iterable[Node],
) -> set[Node]:
    """Returns the nodes of least total cost without which no path leads from a source to a sink.

    Sources and sinks may be in the cut. If there are several cuts, the one next to the sinks is
    returned.

    Args:
      cost: the cost of each node, positive.
    """
    # A node is an edge from its entrance to its exit. The exit has the next number.
    entrance = {node: 2 * i + 2 for i, node in enumerate(cost)}
    network = _Network(2 * len(entrance) + 2)
    unlimited = sum(cost.values()) + 1
    for node, size in cost.items():
        network.add(entrance[node], entrance[node] + 1, size)
    for one, other in edges:
        network.add(entrance[one] + 1, entrance[other], unlimited)
    for node in sources:
        network.add(SOURCE, entrance[node], unlimited)
    for node in sinks:
        network.add(entrance[node] + 1, SINK, unlimited)
    network.fill()
    reaching = network.reaching_the_sink()
    return {node for node, n in entrance.items() if n + 1 in reaching and n not in reaching}


class _Network:
    """Edges with their remaining capacities. Edge `e ^ 1` is the reverse of edge `e`."""

    def __init__(self, num_nodes: int) -> None:
        self._ends: list[int] = []
        self._left: list[int] = []
        self._edges_of: list[list[int]] = [[] for _ in range(num_nodes)]

    def add(self, begin: int, end: int, capacity: int) -> None:
        """Adds an edge with this capacity."""
        for node, other, left in ((begin, end, capacity), (end, begin, 0)):
            self._edges_of[node].append(len(self._ends))
            self._ends.append(other)
            self._left.append(left)

    def fill(self) -> None:
        """Sends as much as possible from source to sink."""
        while (levels := self._levels())[SINK] >= 0:
            self._fill_shortest(levels)

    def _levels(self) -> list[int]:
        """Returns the number of edges from the source to each node; -1 if it cannot be reached."""
        levels = [-1] * len(self._edges_of)
        levels[SOURCE] = 0
        todo = collections.deque([SOURCE])
        while todo:
            node = todo.popleft()
            for edge in self._edges_of[node]:
                end = self._ends[edge]
                if self._left[edge] and levels[end] < 0:
                    levels[end] = levels[node] + 1
                    todo.append(end)
        return levels

    def _fill_shortest(self, levels: list[int]) -> None:
        """Fills all shortest paths."""
        tried = [0] * len(self._edges_of)
        way: list[int] = []
        while True:
            node = self._ends[way[-1]] if way else SOURCE
            if node == SINK:
                flow = min(self._left[edge] for edge in way)
                for edge in way:
                    self._left[edge] -= flow
                    self._left[edge ^ 1] += flow
                way.clear()
            elif tried[node] < len(self._edges_of[node]):
                edge = self._edges_of[node][tried[node]]
                if self._left[edge] and levels[self._ends[edge]] == levels[node] + 1:
                    way.append(edge)
                else:
                    tried[node] += 1
            elif way:
                tried[self._ends[way.pop() ^ 1]] += 1
            else:
                return

    def reaching_the_sink(self) -> set[int]:
        """Returns the nodes from which more could be sent to the sink."""
        found, todo = {SINK}, [SINK]
        while todo:
            for back in self._edges_of[todo.pop()]:
                begin = self._ends[back]
                if self._left[back ^ 1] and begin not in found:
                    found.add(begin)
                    todo.append(begin)
        return found
