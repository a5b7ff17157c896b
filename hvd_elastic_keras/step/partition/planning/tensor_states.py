"""The states in which the tensors of one graph are available, and the collectives between them."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.step.partition.plan import Collective
from hvd_elastic_keras.step.partition.planning.walk import Walk
from hvd_elastic_keras.step.partition.rules.dimensions import Dims, is_constant, tried
from hvd_elastic_keras.step.partition.rules.sizes import Sizes, Values
from hvd_elastic_keras.step.partition.rules.states import (
    EMPTY,
    HANDLE,
    PARTIAL,
    REPLICATED,
    State,
)

Known = tuple[Dims, Values | None]
"""The dimensions and values of a tensor, as `Sizes` holds them."""


@dataclasses.dataclass
class Versions:
    """The states in which a tensor is available, with the rounds of collectives before each."""

    levels: dict[State, int]

    @property
    def state(self) -> State:
        """The state that rules see: the first one, or replicated if partial sums were reduced."""
        first = next(iter(self.levels))
        return REPLICATED if first == PARTIAL and REPLICATED in self.levels else first

    @property
    def is_both(self) -> bool:
        """Whether the tensor is available both as partial sums and reduced."""
        return PARTIAL in self.levels and REPLICATED in self.levels


class TensorStates:
    """What is known of the tensors of one graph while it is planned.

    Args:
      walk: collects what is found.
      graph: the graph.
      sizes: sizes of its tensors.

    Attributes:
      versions: the states of each tensor, by name.
      reductions, gathers: see `Plan`.
    """

    def __init__(self, walk: Walk, graph: Any, sizes: Sizes) -> None:
        self._walk = walk
        self._graph = graph
        self._sizes = sizes
        self.versions: dict[str, Versions] = {}
        self.reductions: dict[int, list[Any]] = collections.defaultdict(list)
        self.gathers: dict[int, list[Any]] = collections.defaultdict(list)

    def known(self, tensors: Sequence[Any]) -> list[Known]:
        """Returns the dimensions and values of tensors."""
        sizes = self._sizes
        return [(sizes.dims[t.name], sizes.values.get(t.name)) for t in tensors]

    def give(self, tensors: Sequence[Any], known: Sequence[Known]) -> None:
        """Notes the dimensions and values of tensors."""
        for tensor, (dims, values) in zip(tensors, known, strict=True):
            self._sizes.give(tensor, dims, values)

    def bring(self, tensor: Any, want: State, reason: str) -> int:
        """Brings a tensor to a state. Returns the rounds of collectives before it."""
        levels = self.versions[tensor.name].levels
        if want in levels:
            return levels[want]
        first = next(iter(levels))
        level = levels.get(REPLICATED, levels[first])
        if (
            REPLICATED not in levels
            and first not in (EMPTY, HANDLE)
            and want not in (EMPTY, HANDLE)
        ):
            level = levels[first] + 1
            levels[REPLICATED] = level
            what = "allreduce" if first.axis is None else "allgather"
            self.note_collective(what, tensor, reason, level)
            if first == PARTIAL:
                self._walk.flow.needed.add((self._graph, tensor.name))
                self.reductions[level].append(tensor)
            elif first.axis is not None and tensor.dtype != tf.variant:
                self.gathers[level].append(tensor)
        levels[want] = level
        return level

    def bring_all(self, pairs: Iterable[tuple[Any, State]], reason: str, level: int = 0) -> int:
        """Brings tensors to states. Returns the rounds before all of them, `level` at least."""
        return max([level, *(self.bring(tensor, want, reason) for tensor, want in pairs)])

    def reduce_early(self, tensor: Any, op: Any) -> None:
        """Reduces a tensor here, not where its sum is needed, if the minimum cut says so."""
        if (self._graph, tensor.name) in self._walk.early and tensor.dtype != tf.variant:
            self.bring(tensor, REPLICATED, f"what follows {op.type} {op.name}")

    def note_collective(self, what: str, tensor: Any, reason: str, level: int) -> None:
        """Notes a collective that comes before an operation, the reason."""
        size, in_loop = self.num_bytes(tensor), self._walk.loops > 0
        found = Collective(what, tensor.name, reason, level, size, in_loop)
        self._walk.collectives.append(found)

    def note_partial(
        self, tensor: Any, inputs: Sequence[Any] = (), want: Sequence[State] = ()
    ) -> None:
        """Notes a partial tensor, and the partial tensors in which it is linear."""
        flow, key = self._walk.flow, (self._graph, tensor.name)
        # Half precision travels in single precision, so it counts as 4 bytes.
        width = max(4, tensor.dtype.size or 4)
        flow.cost[key] = max(1, self._num_elements(tensor)) * width
        shape = tensor.shape
        flow.form[key] = (tensor.dtype, tuple(shape)) if shape.is_fully_defined() else None
        before = [
            (self._graph, t.name)
            for t, w in zip(inputs, want, strict=True)
            if w == PARTIAL and (self._graph, t.name) in flow.cost
        ]
        flow.edges.update((one, key) for one in before)
        if not before:
            flow.made.add(key)

    def _num_elements(self, tensor: Any) -> int:
        dims = self._sizes.dims.get(tensor.name) or ()
        large = tried()[-1]
        return math.prod(
            max(1, d[-1] // large * self._walk.num_rows if d[-1] % large == 0 else d[-1])
            for d in dims
            if d is not None
        )

    def num_bytes(self, tensor: Any) -> int:
        """Returns the bytes of a tensor, for a batch of the size that is assumed."""
        size = 0 if tensor.dtype in (tf.variant, tf.resource) else tensor.dtype.size
        return self._num_elements(tensor) * (size or 0)

    def sum_shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of sums that were not known when the step was traced, by name."""
        found = {}
        for tensor in itertools.chain(*self.reductions.values()):
            sizes = [d[0] for d in self._sizes.dims.get(tensor.name) or () if d and is_constant(d)]
            if not tensor.shape.is_fully_defined() and len(sizes) == tensor.shape.rank:
                found[tensor.name] = tuple(sizes)
        return found
