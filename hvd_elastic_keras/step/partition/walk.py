"""The findings of a walk over the graph of a step, including its loops and branches."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

from hvd_elastic_keras.step.partition.min_cut import min_vertex_cut
from hvd_elastic_keras.step.partition.plan import Collective

Key = tuple[Any, str]
"""A tensor: its graph and its name."""


class Flow:
    """How partial sums flow through linear operations, and which are needed whole."""

    def __init__(self) -> None:
        self.cost: dict[Key, int] = {}
        self.form: dict[Key, Any] = {}
        self.edges: set[tuple[Key, Key]] = set()
        self.made: set[Key] = set()
        self.needed: set[Key] = set()

    def cut(self) -> set[Key]:
        """Returns the cheapest tensors to reduce in place of the needed ones.

        If several tensors follow from each other and have the same form, the first one is returned:
        a gradient, and not the momentum or the weight to which it has been added.
        """
        before: dict[Key, set[Key]] = collections.defaultdict(set)
        for one, other in self.edges:
            before[other].add(one)
        found = min_vertex_cut(self.cost, self.edges, self.made, self.needed)
        return {self._first_like(key, before) for key in found}

    def _first_like(self, key: Key, before: Mapping[Key, set[Key]]) -> Key:
        """Returns the first tensor of the same form through which all partial sums reach `key`.

        It is not larger than `key`.
        """
        while key not in self.made and len(before[key]) == 1:
            (one,) = before[key]
            if self.form[key] is None or self.form[one] != self.form[key]:
                break
            key = one
        return key


class Walk:
    """One walk over the graph."""

    def __init__(self, num_rows: int, early: set[Key]) -> None:
        self.num_rows = num_rows
        self.early = early
        self.flow = Flow()
        self.collectives: list[Collective] = []
        self.whole: list[str] = []
        self.variable_levels: dict[str, int] = collections.defaultdict(int)
        self.loops = 0

    @property
    def saved(self) -> tuple[Any, ...]:
        """A copy of the findings. `restore` undoes a trial, for example of a loop's states."""
        flow = self.flow
        return (
            list(self.collectives),
            list(self.whole),
            dict(self.variable_levels),
            (
                dict(flow.cost),
                dict(flow.form),
                set(flow.edges),
                set(flow.made),
                set(flow.needed),
            ),
        )

    def restore(self, saved: tuple[Any, ...]) -> None:
        """Goes back to `saved`."""
        self.collectives, self.whole, levels, flow = saved
        self.variable_levels = collections.defaultdict(int, levels)
        self.flow.cost, self.flow.form, self.flow.edges, self.flow.made, self.flow.needed = flow
