"""The findings of a walk over the graph of a step, including its loops and branches.

`Flow.cut` finds the cheapest tensors to reduce, so that no partial sum arrives where the whole is
needed. Partial sums flow through linear operations from where they arise to where the whole is
needed. It is enough to reduce a set of tensors that cuts all these paths.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from hvd_elastic_keras.step.partition.plan import Collective
from hvd_elastic_keras.step.partition.planning.min_vertex_cut import min_vertex_cut

Key = tuple[Any, str]
"""A tensor: its graph and its name."""


@dataclasses.dataclass
class Flow:
    """How partial sums flow through linear operations, and which are needed whole.

    Attributes:
      cost: the size of each partial sum, in bytes.
      form: type and shape of each partial sum.
      edges: pairs of a partial sum and another one that follows from it.
      made: partial sums that follow from no other ones.
      needed: partial sums that are needed whole.
      rows: bytes of all rows that are added into a table, for tables that are partial sums.
    """

    cost: dict[Key, int] = dataclasses.field(default_factory=dict)
    form: dict[Key, Any] = dataclasses.field(default_factory=dict)
    edges: set[tuple[Key, Key]] = dataclasses.field(default_factory=set)
    made: set[Key] = dataclasses.field(default_factory=set)
    needed: set[Key] = dataclasses.field(default_factory=set)
    rows: dict[Key, int] = dataclasses.field(default_factory=dict)

    def copy(self) -> Flow:
        """Returns a copy that does not change with this object."""
        return Flow(*(f.copy() for f in vars(self).values()))

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

    def fewer_as_rows(self, tables: Iterable[Key]) -> set[Key]:
        """Returns the tables that are larger than all rows that are added to them."""
        return {t for t in tables if t in self.rows and self.rows[t] < self.cost[t]}

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
    """One walk over the graph.

    Args:
      early: tensors that are reduced as soon as they are there.
      by_rows: tables into which all workers add the rows of all, so that they are not summed.
    """

    def __init__(self, num_rows: int, early: set[Key], by_rows: Collection[Key] = ()) -> None:
        self.num_rows = num_rows
        self.early = early
        self.by_rows = by_rows
        self.flow = Flow()
        self.collectives: list[Collective] = []
        self.whole: list[str] = []
        self.variable_levels: dict[str, int] = collections.defaultdict(int)
        self.loops = 0

    @property
    def saved(self) -> tuple[Any, ...]:
        """A copy of the findings. `restore` undoes a trial, for example of a loop's states."""
        levels = dict(self.variable_levels)
        return list(self.collectives), list(self.whole), levels, self.flow.copy()

    def restore(self, saved: tuple[Any, ...]) -> None:
        """Goes back to `saved`."""
        self.collectives, self.whole, levels, self.flow = saved
        self.variable_levels = collections.defaultdict(int, levels)
