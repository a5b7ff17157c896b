"""The result of the planning: operations with the states of their tensors, and collectives.

`Names` says which tensors of a plan are the same, and which an operation reads or changes.

`told_of_draws` and others make messages about a step that people should read before the first step.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.step.partition.moments import Moments
from hvd_elastic_keras.step.partition.rules.states import HANDLE, Decision, How, State

DRAWS_IN_PYTHON = (
    "the model draws random numbers with numpy.random or Python's random in its step. They are not "
    "the same on all workers, and, without run_eagerly, the same in every step. Use keras.random."
)
EAGERLY = (
    "run_eagerly was given: one worker runs the step eagerly; several compile it, and do not call "
    "its Python code in each step."
)
COMPUTES_WHOLE = (
    "This model counts on the size of its batches (a fixed batch size of an input, or x.shape[0]): "
    "each worker computes whole batches, and more workers are not faster. To let workers share "
    "the batches, give inputs no batch size, and take the number of examples from the data: "
    "keras.ops.shape(x)[0]."
)
WITHOUT_XLA = (
    "jit_compile is on: one worker compiles the step with XLA; several take it without, since XLA "
    "does not know their collectives."
)
FOR_EACH_MICRO_BATCH = (
    "the step calls Python code (tf.py_function or the like), with --deterministic once for each "
    "micro-batch and not once for each step."
)
NOT_TRACED = (
    "run_eagerly was given, and the step cannot be compiled, as several workers have to: {}. "
    "Expected a train_step that uses TensorFlow or keras.ops on the tensors that it is given, and "
    "not their values in Python. Train with one worker outside of a job, or change the step."
)


@dataclasses.dataclass(frozen=True)
class PlannedOperation:
    """An operation of the step.

    Attributes:
      level: rounds of collectives that come before it.
      cut_again: outputs that all workers compute whole, by number. Each worker goes on with its
        rows, in the given state.
      bodies: plans of the functions that it calls: body and condition of a loop, or both branches.
      zeros: shapes of outputs, by number, that a worker without rows takes to be zeros. It does not
        compute the operation. None: it computes the operation.
    """

    op: Any
    decision: Decision
    level: int
    cut_again: Mapping[int, State]
    bodies: tuple[Plan, ...] = ()
    zeros: Mapping[int, tuple[int, ...]] | None = None


@dataclasses.dataclass(frozen=True)
class Plan:
    """How several workers compute a graph.

    Attributes:
      graph: what is computed.
      ins, outs: the states of its inputs and outputs.
      operations: in the order of their levels, so that none waits for a collective needlessly.
      reductions: by level, the partial tensors that are summed together right before it.
      gathers: by level, the tensors of which all workers gather the rows together right before it.
      moments: by level, means and variances that are found together right before it.
      sum_shapes: shapes of partial tensors that were not known when the step was traced, by name.
        A shape is here only if it is the same for every batch.
    """

    graph: Any
    ins: tuple[State, ...]
    operations: tuple[PlannedOperation, ...]
    outs: tuple[State, ...]
    reductions: Mapping[int, tuple[Any, ...]]
    gathers: Mapping[int, tuple[Any, ...]]
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

    @property
    def ends_with_groups(self) -> bool:
        """Whether all collectives of the last round are known before it and travel in groups.

        Then none of them stands between the operations that follow.
        """
        last = max((c.level for c in self.collectives), default=0)
        sums = [t for t in self.plan.reductions.get(last, ()) if t.dtype != tf.variant]
        others = (*self.plan.gathers.get(last, ()), *self.plan.moments.get(last, ()))
        return sum(c.level == last for c in self.collectives) == len(sums) + len(others)

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


class Names:
    """Names of tensors and of variables' handles. Tensors that are the same have one name."""

    def __init__(self, plan: Plan) -> None:
        self._first: dict[str, str] = {}
        for planned in plan.operations:
            op, decision = planned.op, planned.decision
            states = [HANDLE] * len(op.outputs) if decision.how == How.ALIAS else decision.out
            if HANDLE in states:
                for tensor, result, state in zip(op.inputs, op.outputs, states, strict=True):
                    if state == HANDLE:
                        self._first[result.name] = self.of(tensor.name)

    def of(self, name: str) -> str:
        return self._first.get(name, name)

    def inputs(self, planned: PlannedOperation) -> set[str]:
        return {self.of(t.name) for t in planned.op.inputs}

    def results(self, planned: PlannedOperation) -> set[str]:
        """Returns the names of its outputs and of the variables that it may assign to."""
        op, want = planned.op, planned.decision.want
        assigned = op.inputs if op.type not in ("ReadVariableOp", "VariableShape") else ()
        handles = [t for t, state in zip(assigned, want, strict=False) if state == HANDLE]
        return {self.of(t.name) for t in (*op.outputs, *handles)}


@dataclasses.dataclass(frozen=True)
class Planned:
    """A plan by which several workers take batches of some form.

    Attributes:
      name: beginning of the names of its collectives.
      per_row: for each tensor, how many entries of the first axis belong to each row.
    """

    name: str
    analysis: Analysis
    per_row: Sequence[int]


def told_of_draws(names: Sequence[str], *, in_python: bool) -> list[str]:
    """Returns messages about random numbers that differ from plain `fit`.

    Args:
      names: TensorFlow's names of operations that would draw from a state.
      in_python: whether Python code draws while the step is traced.
    """
    texts = [DRAWS_IN_PYTHON] if in_python else []
    if not names:
        return texts
    return [
        *texts,
        f"the model draws random numbers with {', '.join(names)}. They are the same for any number "
        "of workers, but not those of plain fit. keras.random, with or without a SeedGenerator, "
        "would give the same.",
    ]


def told_of_variables(names: Sequence[str]) -> list[str]:
    """Returns a message about variables that are used, but that new workers do not get."""
    if not names:
        return []
    return [
        "the step or the data use variables that cannot be sent to other workers: "
        f"{', '.join(names)}. Workers that come later do not get their values. Give the variables "
        "a numeric type and a fixed shape."
    ]


def listed(texts: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Returns all messages, each once."""
    return tuple(dict.fromkeys(text for some in texts for text in some))
