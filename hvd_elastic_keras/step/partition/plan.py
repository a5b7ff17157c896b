"""The result of `analysis.py`: operations with the states of their tensors, and collectives."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any

from hvd_elastic_keras.step.partition.moments import Moments
from hvd_elastic_keras.step.partition.operations.states import Decision, State


@dataclasses.dataclass(frozen=True)
class PlannedOperation:
    """An operation of the step.

    Attributes:
      level: rounds of collectives that come before it.
      cut_again: outputs that all workers compute whole, by number. Each worker goes on with its
        rows, in the given state.
      bodies: plans of the functions that it calls: body and condition of a loop, or both branches.
    """

    op: Any
    decision: Decision
    level: int
    cut_again: Mapping[int, State]
    bodies: tuple[Plan, ...] = ()


@dataclasses.dataclass(frozen=True)
class Plan:
    """How several workers compute a graph.

    Attributes:
      graph: what is computed.
      ins, outs: the states of its inputs and outputs.
      operations: in the order of their levels, so that none waits for a collective needlessly.
      reductions: by level, the partial tensors that are summed together right before it.
      moments: by level, means and variances that are found together right before it.
      sum_shapes: shapes of partial tensors that were not known when the step was traced, by name.
        Only shapes that follow from neither rows nor other sizes that a batch leaves open.
    """

    graph: Any
    ins: tuple[State, ...]
    operations: tuple[PlannedOperation, ...]
    outs: tuple[State, ...]
    reductions: Mapping[int, tuple[Any, ...]]
    moments: Mapping[int, tuple[Moments, ...]]
    sum_shapes: Mapping[str, tuple[int, ...]]

    @property
    def num_operations(self) -> int:
        """The number of operations, including operations of functions."""
        return sum(1 + sum(b.num_operations for b in o.bodies) for o in self.operations)


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective between the workers.

    Attributes:
      what: "allreduce" or "allgather".
      tensor: the name of the tensor in the graph.
      reason: the operation that needs the whole tensor.
      level: its round. Collectives of one level are independent of each other.
      num_bytes: bytes of the whole tensor, for a batch of the size that was assumed.
      in_loop: whether it is repeated in each iteration of a loop.
    """

    what: str
    tensor: str
    reason: str
    level: int
    num_bytes: int
    in_loop: bool

    def __str__(self) -> str:
        loop = ", in a loop" if self.in_loop else ""
        return f"{self.what} before {self.reason}, {self.num_bytes} bytes{loop}"


@dataclasses.dataclass(frozen=True)
class Analysis:
    """The plan of a step, with information for people.

    Attributes:
      most_rows: the plan holds for batches of 2 to this number of rows. None: of 1 row and more.
      gathered: numbers of the tensors of a batch that all workers gather before anything else.
      collectives: all collectives, in the order of their levels.
      whole: operations that every worker computes whole although they see rows, with the reason.
      rounded: names of sums of the step's own graph that travel in 16 bits.
    """

    plan: Plan
    most_rows: int | None
    gathered: frozenset[int]
    collectives: tuple[Collective, ...]
    whole: tuple[str, ...]
    rounded: frozenset[str] = frozenset()

    @property
    def num_rounds(self) -> int:
        """The number of rounds of collectives. Each round waits for the one before."""
        return len({c.level for c in self.collectives})

    def lines(self) -> list[str]:
        """Returns a text for people: each collective with its reason."""
        counts = collections.Counter(c.what for c in self.collectives)
        number = ", ".join(f"{n} {what}" for what, n in sorted(counts.items())) or "no collective"
        rounds = f"{self.num_rounds} round{'' if self.num_rounds == 1 else 's'}"
        return [
            f"{number} in {rounds}",
            *(f"round {c.level}: {c}" for c in self.collectives),
            *(f"computed whole by every worker: {text}" for text in self.whole),
        ]
