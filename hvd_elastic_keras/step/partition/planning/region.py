"""Plans one graph: the graph of a step, or the body of a loop or branch."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

from hvd_elastic_keras.keras_internals.traced_graphs import body_of
from hvd_elastic_keras.step.partition import within_micro_batches
from hvd_elastic_keras.step.partition.captured_step import operations
from hvd_elastic_keras.step.partition.moments import Moments, variances
from hvd_elastic_keras.step.partition.plan import Plan, PlannedOperation
from hvd_elastic_keras.step.partition.planning.decide import decided, taken
from hvd_elastic_keras.step.partition.planning.plan_functions import (
    is_planned_through,
    plan_functions,
    same_known,
)
from hvd_elastic_keras.step.partition.planning.tensor_states import Known, TensorStates, Versions
from hvd_elastic_keras.step.partition.planning.walk import Walk
from hvd_elastic_keras.step.partition.rules import RULES
from hvd_elastic_keras.step.partition.rules.elementwise import elementwise
from hvd_elastic_keras.step.partition.rules.sizes import Sizes
from hvd_elastic_keras.step.partition.rules.states import (
    HANDLE,
    PARTIAL,
    REPLICATED,
    Decision,
    How,
    State,
    is_sharded,
    only_rows_axis,
    sharded,
)
from hvd_elastic_keras.step.partition.within_micro_batches import is_within

SMALL_BYTES = 1 << 16
"""A tensor up to this size that is linear in partial ones is kept partial beside the whole."""
ADDS_ROWS = ("UnsortedSegmentSum", "ScatterNd")
"""Operations that add rows to rows of a table, such as the gradient of an embedding."""


class Region:
    """The analysis of one graph: the step, or the body of a loop or branch.

    Args:
      walk: collects what is found.
      sizes: sizes of the tensors. Sizes of the inputs are known already.
      cuts: whether a worker that has computed a tensor whole goes on with its own rows of it.

    Attributes:
      tensors: the states in which the tensors are available.
    """

    def __init__(self, walk: Walk, graph: Any, sizes: Sizes, *, cuts: bool = True) -> None:
        self.walk = walk
        self.graph = graph
        self.tensors = TensorStates(walk, graph, sizes)
        self._sizes = sizes
        self._cuts = cuts
        self._planned: list[PlannedOperation] = []
        self._variances: dict[Any, tuple[Any, tuple[int, ...]]] = {}
        self._moments: dict[int, list[Moments]] = collections.defaultdict(list)

    def planned(
        self,
        ins: Sequence[State],
        levels: Sequence[int],
        outs: Sequence[State] | None,
        what: str,
    ) -> Plan:
        """Plans all operations.

        Args:
          ins: the states of the inputs.
          levels: rounds of collectives before each input.
          outs: the states in which outputs are wanted. None: outputs keep their states.
          what: describes the outputs, for people.
        """
        for tensor, state, level in zip(self.graph.inputs, ins, levels, strict=True):
            self.tensors.versions[tensor.name] = Versions({state: level})
            if state == PARTIAL:
                self.tensors.note_partial(tensor)
        if not self._sizes.operations:  # the first walk
            self._sizes.operations = operations(self.graph)
        self._variances = variances(self._sizes.operations)
        for op in self._sizes.operations:
            self._plan(op)
        wanted = []
        for i, tensor in enumerate(self.graph.outputs):
            want = self.tensors.versions[tensor.name].state if outs is None else outs[i]
            self.tensors.bring(tensor, want, what)
            wanted.append(want)
        return Plan(
            self.graph,
            tuple(ins),
            tuple(sorted(self._planned, key=lambda p: p.level)),
            tuple(wanted),
            {level: tuple(tensors) for level, tensors in self.tensors.reductions.items()},
            {level: tuple(tensors) for level, tensors in self.tensors.gathers.items()},
            {level: tuple(found) for level, found in self._moments.items()},
            self.tensors.sum_shapes(),
        )

    # --- one operation -------------------------------------------------------------------

    def _plan(self, op: Any) -> None:
        if op.type == "IdentityN":
            self._plan_alias(op)
            return
        versions = [self.tensors.versions[t.name] for t in op.inputs]
        states = tuple(taken(op, v.state) for v in versions)
        bodies: tuple[Plan, ...] = ()
        kept: Decision | None = None
        if is_planned_through(self.graph, op):
            level = max((min(v.levels.values()) for v in versions), default=0)
            decision, bodies = plan_functions(self, op, states, level)
        else:
            if is_within(op):
                within_micro_batches.give_sizes(op, self._sizes)
            else:
                self._sizes.infer(op)
            if op.type == "Mean" and op.outputs[0].name in self.tensors.versions:
                return  # a variance, planned together with its mean
            decision = decided(op, states, self._sizes)
            if op.type in ADDS_ROWS and decision.out == (PARTIAL,):
                decision = self._of_added_rows(op, decision)
            kept = self._kept_partial(op, versions, states, decision)
            if kept is not None and decision.out == kept.out and not kept.whole:
                decision = kept  # partial in any case: better before than after the reduction
                kept = None
            elif kept is not None and (decision.out != (REPLICATED,) or decision.how != How.RUN):
                kept = None
        if decision.whole:
            self.walk.whole.append(f"{op.type} {op.name}: {decision.whole}")
        level = self._level(op, decision)
        if kept is not None:
            self._keep_partial(op, kept, level)
        self._give_outputs(op, decision, level, bodies)
        if decision.how == How.MEAN and op in self._variances:
            self._give_moments(op, decision.want[0], level + 1)

    def _plan_alias(self, op: Any) -> None:
        """Plans an operation whose output `i` is input `i`, whatever becomes of the others."""
        tensors = self.tensors
        for tensor, result in zip(op.inputs, op.outputs, strict=True):
            tensors.versions[result.name] = tensors.versions[tensor.name]
            tensors.give([result], tensors.known([tensor]))
            if PARTIAL in tensors.versions[tensor.name].levels:
                tensors.note_partial(result, [tensor], [PARTIAL])
                tensors.reduce_early(result, op)
        self._planned.append(PlannedOperation(op, Decision((), (), how=How.ALIAS), 0, {}))

    def _of_added_rows(self, op: Any, decision: Decision) -> Decision:
        """Decides whether workers add their rows to a table of their own, or all rows to the same.

        The tables of all workers then have to be summed, and the rows of all workers gathered: what
        takes fewer bytes is done.
        """
        key = (self.graph, op.outputs[0].name)
        rows = [t for t, s in zip(op.inputs, decision.want, strict=True) if is_sharded(s)]
        if key not in self.walk.by_rows:
            self.walk.flow.rows[key] = sum(map(self.tensors.num_bytes, rows))
            return decision
        for tensor in rows:
            self._bring_from_fewest(tensor, f"{op.type} {op.name}")
        return Decision((REPLICATED,) * len(op.inputs), (REPLICATED,))

    def _bring_from_fewest(self, tensor: Any, reason: str) -> None:
        """Brings rows to all workers.

        If they follow from other rows, element by element, then these are brought, and all workers
        compute with them: several tensors may follow from the same rows. (Adam needs the rows of a
        gradient, and their squares.)
        """
        versions = self.tensors.versions
        levels = versions[tensor.name].levels
        planned = next((p for p in self._planned if p.op is tensor.op), None)
        is_elementwise = RULES.get(tensor.op.type) is elementwise
        if planned is not None and is_elementwise and REPLICATED not in levels:
            wanted = list(zip(tensor.op.inputs, planned.decision.want, strict=True))
            rows = [t for t, state in wanted if is_sharded(state)]
            others = [t for t, state in wanted if not is_sharded(state)]
            if len(rows) == 1 and all(REPLICATED in versions[t.name].levels for t in others):
                self._bring_from_fewest(rows[0], reason)
                level = self.tensors.bring_all([(t, REPLICATED) for t, _ in wanted], reason)
                whole = Decision((REPLICATED,) * len(wanted), (REPLICATED,))
                self._planned.append(PlannedOperation(tensor.op, whole, level, {}))
                levels[REPLICATED] = level
        self.tensors.bring(tensor, REPLICATED, reason)

    def _kept_partial(
        self,
        op: Any,
        versions: Sequence[Versions],
        states: tuple[State, ...],
        decision: Decision,
    ) -> Decision | None:
        """Decides how to compute from partial sums, if some inputs are also available reduced."""
        both = [v for v in versions if v.is_both]
        if not both or any(not t.dtype.is_floating for t in op.outputs):
            return None
        latest = max(v.levels[REPLICATED] for v in both)
        partial = tuple(
            PARTIAL if v.is_both and v.levels[REPLICATED] == latest else s
            for v, s in zip(versions, states, strict=True)
        )
        found = decided(op, partial, self._sizes)
        if found.out != (PARTIAL,) or found.whole or PARTIAL not in found.want:
            return None
        if decision.out != (PARTIAL,) and self.tensors.num_bytes(op.outputs[0]) > SMALL_BYTES:
            return None
        return found

    def _keep_partial(self, op: Any, kept: Decision, level: int) -> None:
        """Computes a small tensor from partial sums as well as from the reduced ones.

        Partial sums that are added to it later then need no second round. This saves one round for
        each layer in batch norm's backward pass.
        """
        wanted = zip(op.inputs, kept.want, strict=True)
        low = self.tensors.bring_all(wanted, f"{op.type} {op.name}")
        if low < level:
            self.tensors.versions[op.outputs[0].name] = Versions({PARTIAL: low})
            self._planned.append(PlannedOperation(op, kept, low, {}))
            self.tensors.note_partial(op.outputs[0], op.inputs, kept.want)

    def _level(self, op: Any, decision: Decision) -> int:
        """Brings the inputs of an operation to the wanted states. Returns the rounds before it."""
        reason = f"{op.type} {op.name}"
        wanted = list(zip(op.inputs, decision.want, strict=True))
        level = self.tensors.bring_all(wanted, reason)
        if decision.how == How.EXTREME:
            level += 1
            self.tensors.note_collective("allreduce", op.outputs[0], reason, level)
        levels = self.walk.variable_levels
        for tensor, state in wanted:
            if state == HANDLE:
                level = max(level, levels[tensor.name])
        for tensor, state in wanted:
            if state == HANDLE and op.type not in ("ReadVariableOp", "VariableShape"):
                levels[tensor.name] = level
        return level

    def _give_outputs(
        self, op: Any, decision: Decision, level: int, bodies: tuple[Plan, ...]
    ) -> None:
        versions = self.tensors.versions
        again: dict[int, State] = {}
        for i, (tensor, state) in enumerate(zip(op.outputs, decision.out, strict=True)):
            found = {state: level}
            if (
                state == REPLICATED
                and self._cuts
                and not bodies
                and decision.how in (How.RUN, How.DRAW)
            ):
                axis = only_rows_axis(tensor, self._sizes.dims[tensor.name])
                if axis is not None:
                    # Otherwise, one operation computed whole would make all later ones whole.
                    again[i] = sharded(axis)
                    found = {again[i]: level, REPLICATED: level}
            before = versions.get(tensor.name)
            versions[tensor.name] = Versions((before.levels if before else {}) | found)
        self._planned.append(PlannedOperation(op, decision, level, again, bodies))
        for tensor, state in zip(op.outputs, decision.out, strict=True):
            if state == PARTIAL:
                self.tensors.note_partial(tensor, op.inputs, decision.want)
                self.tensors.reduce_early(tensor, op)

    def _give_moments(self, mean: Any, state: State, level: int) -> None:
        """Gives the variance together with the mean, which saves a second round."""
        variance, axes = self._variances[mean]
        self.tensors.versions[mean.outputs[0].name].levels[REPLICATED] = level
        self.tensors.versions[variance.outputs[0].name] = Versions({REPLICATED: level})
        self._moments[level].append(Moments(mean, variance, axes, state))
        reason = f"what follows Mean {mean.name}, with {variance.name}"
        self.tensors.note_collective("allgather", mean.outputs[0], reason, level)

    # --- functions -----------------------------------------------------------------------

    def inner(
        self,
        op: Any,
        name: str,
        known: Sequence[Known],
        states: tuple[State, ...],
        *,
        cuts: bool = True,
    ) -> Region:
        """Returns the region of a function's body.

        The sizes of its tensors follow from `known` and `states`, so they are found only once.
        """
        graph = body_of(self.graph, op, name)
        found = self._sizes.of_bodies.setdefault((graph, states), [])
        sizes = next((sizes for inputs, sizes in found if same_known(inputs, known)), None)
        region = Region(self.walk, graph, sizes or Sizes(), cuts=cuts)
        if sizes is None:
            region.tensors.give(graph.inputs, known)
            found.append((known, region._sizes))
        return region
