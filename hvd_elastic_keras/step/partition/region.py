"""Plans one graph: the graph of a step, or the body of a loop or branch."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.keras_internals.traced_graphs import FUNCTIONS, PYTHON_CALLS, body_of
from hvd_elastic_keras.step.partition import within_micro_batches
from hvd_elastic_keras.step.partition.captured_step import WRITES, is_for_xla, operations
from hvd_elastic_keras.step.partition.moments import Moments, variances
from hvd_elastic_keras.step.partition.plan import Collective, Plan, PlannedOperation
from hvd_elastic_keras.step.partition.rules import RULES
from hvd_elastic_keras.step.partition.rules.dimensions import (
    Dims,
    Sizes,
    Values,
    common_values,
    is_constant,
    same_values,
    tried,
)
from hvd_elastic_keras.step.partition.rules.elementwise import elementwise, is_guard
from hvd_elastic_keras.step.partition.rules.states import (
    CONJUNCT,
    EMPTY,
    HANDLE,
    PARTIAL,
    REPLICATED,
    Decision,
    State,
    UnknownSizeError,
    View,
    is_sharded,
    joined,
    only_rows_axis,
    sharded,
    unrepeatable,
)
from hvd_elastic_keras.step.partition.walk import Walk
from hvd_elastic_keras.step.partition.within_micro_batches import is_within

SMALL_BYTES = 1 << 16
"""A tensor up to this size that is linear in partial ones is kept partial beside the whole."""
ADDS_ROWS = ("UnsortedSegmentSum", "ScatterNd")
"""Operations that add rows to rows of a table, such as the gradient of an embedding."""
Known = tuple[Dims, Values | None]
"""The dimensions and values of a tensor, as `Sizes` holds them."""
NO_RULE = dict.fromkeys(PYTHON_CALLS, "Python code, which has to do the same on all workers")


class NotPartitionedError(Exception):
    """Other workers cannot repeat an operation, or its effect on variables is unknown."""


@dataclasses.dataclass
class _Versions:
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


class Region:
    """The analysis of one graph: the step, or the body of a loop or branch.

    Args:
      walk: collects what is found.
      sizes: sizes of the tensors. Sizes of the inputs are known already.

    Attributes:
      cuts: whether workers go on with only their rows of tensors that they have computed whole.
    """

    cuts = True

    def __init__(self, walk: Walk, graph: Any, sizes: Sizes) -> None:
        self._walk = walk
        self.graph = graph
        self._sizes = sizes
        self._versions: dict[str, _Versions] = {}
        self._planned: list[PlannedOperation] = []
        self._reductions: dict[int, list[Any]] = collections.defaultdict(list)
        self._gathers: dict[int, list[Any]] = collections.defaultdict(list)
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
            self._versions[tensor.name] = _Versions({state: level})
            if state == PARTIAL:
                self._note_partial(tensor)
        if not self._sizes.operations:  # the first walk
            self._sizes.operations = operations(self.graph)
        self._variances = variances(self._sizes.operations)
        for op in self._sizes.operations:
            self._plan(op)
        wanted = []
        for i, tensor in enumerate(self.graph.outputs):
            want = self._versions[tensor.name].state if outs is None else outs[i]
            self._bring(tensor, want, what)
            wanted.append(want)
        return Plan(
            self.graph,
            tuple(ins),
            tuple(sorted(self._planned, key=lambda p: p.level)),
            tuple(wanted),
            {level: tuple(tensors) for level, tensors in self._reductions.items()},
            {level: tuple(tensors) for level, tensors in self._gathers.items()},
            {level: tuple(found) for level, found in self._moments.items()},
            self._sum_shapes(),
        )

    def _sum_shapes(self) -> dict[str, tuple[int, ...]]:
        found = {}
        for tensor in itertools.chain(*self._reductions.values()):
            sizes = [d[0] for d in self._sizes.dims.get(tensor.name) or () if d and is_constant(d)]
            if not tensor.shape.is_fully_defined() and len(sizes) == tensor.shape.rank:
                found[tensor.name] = tuple(sizes)
        return found

    # --- one operation -------------------------------------------------------------------

    def _plan(self, op: Any) -> None:
        if op.type == "IdentityN":
            self._plan_alias(op)
            return
        versions = [self._versions[t.name] for t in op.inputs]
        states = tuple(_taken(op, v.state) for v in versions)
        bodies: tuple[Plan, ...] = ()
        kept: Decision | None = None
        if self._is_walked_through(op):
            level = max((min(v.levels.values()) for v in versions), default=0)
            decision, bodies = self._of_functions(op, states, level)
        else:
            if is_within(op):
                within_micro_batches.give_sizes(op, self._sizes)
            else:
                self._sizes.infer(op)
            if op.type == "Mean" and op.outputs[0].name in self._versions:
                return  # a variance, planned together with its mean
            decision = self._decision(op, states)
            if op.type in ADDS_ROWS and decision.out == (PARTIAL,):
                decision = self._of_added_rows(op, decision)
            kept = self._kept_partial(op, versions, states, decision)
            if kept is not None and decision.out == kept.out and not kept.whole:
                decision = kept  # partial in any case: better before than after the reduction
                kept = None
            elif kept is not None and (decision.out != (REPLICATED,) or decision.how != "run"):
                kept = None
        if decision.whole:
            self._walk.whole.append(f"{op.type} {op.name}: {decision.whole}")
        level = self._level(op, decision)
        if kept is not None:
            self._keep_partial(op, kept, level)
        self._give_outputs(op, decision, level, bodies)
        if decision.how == "mean" and op in self._variances:
            self._give_moments(op, decision.want[0], level + 1)

    def _plan_alias(self, op: Any) -> None:
        """Plans an operation whose output `i` is input `i`, whatever becomes of the others."""
        for tensor, result in zip(op.inputs, op.outputs, strict=True):
            self._versions[result.name] = self._versions[tensor.name]
            self.give([result], self.known([tensor]))
            if PARTIAL in self._versions[tensor.name].levels:
                self._note_partial(result, [tensor], [PARTIAL])
                self._reduce_early(result, op)
        self._planned.append(PlannedOperation(op, Decision((), (), how="alias"), 0, {}))

    def _decision(self, op: Any, states: tuple[State, ...]) -> Decision:
        """Returns what is decided about an operation. It is the same in each walk."""
        found = self._sizes.decisions.get((op, states))
        if found is None:
            found = self._sizes.decisions[op, states] = self._decide(op, states)
        return found

    def _decide(self, op: Any, states: tuple[State, ...]) -> Decision:
        view = View(op, states, self._sizes)
        if op.type == "Const":
            return Decision((), (REPLICATED,))
        if op.type in WRITES and HANDLE in states:
            return Decision(_with_handles(states), (), how="variable")
        if op.type in ("ReadVariableOp", "VariableShape", "VarIsInitializedOp"):
            return Decision(states, (REPLICATED,), how="variable")
        if op.type == "Identity" and states == (HANDLE,):
            return Decision(states, (HANDLE,), how="variable")
        rule = within_micro_batches.decision if is_within(op) else RULES.get(op.type)
        if rule is None and (why := unrepeatable(op)):
            raise NotPartitionedError(why)
        if rule is None and HANDLE in states:
            raise NotPartitionedError(f"the effect of {op.type} {op.name} on variables is unknown")
        if rule is None:
            return view.replicated(NO_RULE.get(op.type, "no rule"))
        try:
            found = rule(view)
            if found.local_size is None:
                return found
            return dataclasses.replace(found, forms=view.output_forms)
        except UnknownSizeError:
            return view.replicated("a size is unknown")

    def _of_added_rows(self, op: Any, decision: Decision) -> Decision:
        """Decides whether workers add their rows to a table of their own, or all rows to the same.

        The tables of all workers then have to be summed, and the rows of all workers gathered: what
        takes fewer bytes is done.
        """
        key = (self.graph, op.outputs[0].name)
        rows = [t for t, s in zip(op.inputs, decision.want, strict=True) if is_sharded(s)]
        if key not in self._walk.by_rows:
            self._walk.flow.rows[key] = sum(map(self._num_bytes, rows))
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
        levels = self._versions[tensor.name].levels
        planned = next((p for p in self._planned if p.op is tensor.op), None)
        is_elementwise = RULES.get(tensor.op.type) is elementwise
        if planned is not None and is_elementwise and REPLICATED not in levels:
            wanted = list(zip(tensor.op.inputs, planned.decision.want, strict=True))
            rows = [t for t, state in wanted if is_sharded(state)]
            others = [t for t, state in wanted if not is_sharded(state)]
            if len(rows) == 1 and all(REPLICATED in self._versions[t.name].levels for t in others):
                self._bring_from_fewest(rows[0], reason)
                level = max(self._bring(t, REPLICATED, reason) for t, _ in wanted)
                whole = Decision((REPLICATED,) * len(wanted), (REPLICATED,))
                self._planned.append(PlannedOperation(tensor.op, whole, level, {}))
                levels[REPLICATED] = level
        self._bring(tensor, REPLICATED, reason)

    def _kept_partial(
        self,
        op: Any,
        versions: Sequence[_Versions],
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
        found = self._decision(op, partial)
        if found.out != (PARTIAL,) or found.whole or PARTIAL not in found.want:
            return None
        if decision.out != (PARTIAL,) and self._num_bytes(op.outputs[0]) > SMALL_BYTES:
            return None
        return found

    def _keep_partial(self, op: Any, kept: Decision, level: int) -> None:
        """Computes a small tensor from partial sums as well as from the reduced ones.

        Partial sums that are added to it later then need no second round. This saves one round for
        each layer in batch norm's backward pass.
        """
        low = max(
            self._bring(t, w, f"{op.type} {op.name}")
            for t, w in zip(op.inputs, kept.want, strict=True)
        )
        if low < level:
            self._versions[op.outputs[0].name] = _Versions({PARTIAL: low})
            self._planned.append(PlannedOperation(op, kept, low, {}))
            self._note_partial(op.outputs[0], op.inputs, kept.want)

    def _level(self, op: Any, decision: Decision) -> int:
        """Brings the inputs of an operation to the wanted states. Returns the rounds before it."""
        reason = f"{op.type} {op.name}"
        wanted = list(zip(op.inputs, decision.want, strict=True))
        level = max([self._bring(t, w, reason) for t, w in wanted], default=0)
        if decision.how == "extreme":
            level += 1
            self._note_collective("allreduce", op.outputs[0], reason, level)
        levels = self._walk.variable_levels
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
        again: dict[int, State] = {}
        for i, (tensor, state) in enumerate(zip(op.outputs, decision.out, strict=True)):
            found = {state: level}
            if state == REPLICATED and self.cuts and not bodies and decision.how in ("run", "draw"):
                axis = only_rows_axis(tensor, self._sizes.dims[tensor.name])
                if axis is not None:
                    # Otherwise, one operation computed whole would make all later ones whole.
                    again[i] = sharded(axis)
                    found = {again[i]: level, REPLICATED: level}
            before = self._versions.get(tensor.name)
            self._versions[tensor.name] = _Versions((before.levels if before else {}) | found)
        self._planned.append(PlannedOperation(op, decision, level, again, bodies))
        for tensor, state in zip(op.outputs, decision.out, strict=True):
            if state == PARTIAL:
                self._note_partial(tensor, op.inputs, decision.want)
                self._reduce_early(tensor, op)

    def _reduce_early(self, tensor: Any, op: Any) -> None:
        """Reduces a tensor here, not where its sum is needed, if the minimum cut says so."""
        if (self.graph, tensor.name) in self._walk.early and tensor.dtype != tf.variant:
            self._bring(tensor, REPLICATED, f"what follows {op.type} {op.name}")

    def _give_moments(self, mean: Any, state: State, level: int) -> None:
        """Gives the variance together with the mean, which saves a second round."""
        variance, axes = self._variances[mean]
        self._versions[mean.outputs[0].name].levels[REPLICATED] = level
        self._versions[variance.outputs[0].name] = _Versions({REPLICATED: level})
        self._moments[level].append(Moments(mean, variance, axes, state))
        reason = f"what follows Mean {mean.name}, with {variance.name}"
        self._note_collective("allgather", mean.outputs[0], reason, level)

    # --- conversions ---------------------------------------------------------------------

    def _bring(self, tensor: Any, want: State, reason: str) -> int:
        """Brings a tensor to a state. Returns the rounds of collectives before it."""
        levels = self._versions[tensor.name].levels
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
            self._note_collective(what, tensor, reason, level)
            if first == PARTIAL:
                self._walk.flow.needed.add((self.graph, tensor.name))
                self._reductions[level].append(tensor)
            elif first.axis is not None and tensor.dtype != tf.variant:
                self._gathers[level].append(tensor)
        levels[want] = level
        return level

    def note_gathered(self, tensor: Any, why: str) -> None:
        """Notes that all workers gather an input before anything else."""
        self._note_collective("allgather", tensor, f"all else, since {why}", 1)

    def _note_collective(self, what: str, tensor: Any, reason: str, level: int) -> None:
        size, in_loop = self._num_bytes(tensor), self._walk.loops > 0
        found = Collective(what, tensor.name, reason, level, size, in_loop)
        self._walk.collectives.append(found)

    def _note_partial(
        self, tensor: Any, inputs: Sequence[Any] = (), want: Sequence[State] = ()
    ) -> None:
        """Notes a partial tensor, and the partial tensors in which it is linear."""
        flow, key = self._walk.flow, (self.graph, tensor.name)
        # Half precision travels in single precision, so it counts as 4 bytes.
        width = max(4, tensor.dtype.size or 4)
        flow.cost[key] = max(1, self._num_elements(tensor)) * width
        shape = tensor.shape
        flow.form[key] = (tensor.dtype, tuple(shape)) if shape.is_fully_defined() else None
        before = [
            (self.graph, t.name)
            for t, w in zip(inputs, want, strict=True)
            if w == PARTIAL and (self.graph, t.name) in flow.cost
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

    def _num_bytes(self, tensor: Any) -> int:
        size = 0 if tensor.dtype in (tf.variant, tf.resource) else tensor.dtype.size
        return self._num_elements(tensor) * (size or 0)

    # --- functions -----------------------------------------------------------------------

    def _is_walked_through(self, op: Any) -> bool:
        names = () if is_within(op) or is_guard(op) else FUNCTIONS.get(op.type, ())
        return bool(names) and all(body_of(self.graph, op, n) is not None for n in names)

    def _of_functions(
        self, op: Any, states: tuple[State, ...], level: int
    ) -> tuple[Decision, tuple[Plan, ...]]:
        if "body" in FUNCTIONS[op.type]:
            return self._loop(op, states, level)
        if "then_branch" in FUNCTIONS[op.type]:
            return self._branches(op, states, level)
        saved, before = self._walk.saved, len(self._walk.collectives)
        region = self._body(op, "f", self.known(op.inputs), states)
        plan = region.planned(states, [level] * len(states), None, op.name)
        if is_for_xla(op) and len(self._walk.collectives) > before:
            self._walk.restore(saved)  # XLA knows no collectives
            states = tuple(s if s == HANDLE else REPLICATED for s in states)
            pairs = zip(op.inputs, states, strict=True)
            level = max([level, *(self._bring(t, s, f"XLA's {op.name}") for t, s in pairs)])
            region = self._body(op, "f", self.known(op.inputs), states)
            region.cuts = False
            plan = region.planned(states, [level] * len(states), None, op.name)
            self._walk.whole.append(f"{op.type} {op.name}: XLA knows no collectives")
        self.give(op.outputs, region.known(plan.graph.outputs))
        return Decision(states, plan.outs, how="call"), (plan,)

    def known(self, tensors: Sequence[Any]) -> list[Known]:
        sizes = self._sizes
        return [(sizes.dims[t.name], sizes.values.get(t.name)) for t in tensors]

    def give(self, tensors: Sequence[Any], known: Sequence[Known]) -> None:
        for tensor, (dims, values) in zip(tensors, known, strict=True):
            self._sizes.give(tensor, dims, values)

    def _body(
        self, op: Any, name: str, known: Sequence[Known], states: tuple[State, ...]
    ) -> Region:
        """Returns the region of a function's body.

        The sizes of its tensors follow from `known` and `states`, so they are found only once.
        """
        graph = body_of(self.graph, op, name)
        found = self._sizes.of_bodies.setdefault((graph, states), [])
        sizes = next((sizes for inputs, sizes in found if _same(inputs, known)), None)
        region = Region(self._walk, graph, sizes or Sizes())
        if sizes is None:
            region.give(graph.inputs, known)
            found.append((known, region._sizes))
        return region

    def _loop(
        self, op: Any, states: tuple[State, ...], level: int
    ) -> tuple[Decision, tuple[Plan, ...]]:
        """Plans a loop, once the states and sizes of its variables have reached a fixed point."""
        known = self.known(op.inputs)
        levels = [level] * len(states)
        self._walk.loops += 1
        while True:
            saved = self._walk.saved
            region = self._body(op, "body", known, states)
            plan = region.planned(states, levels, None, "")
            found = region.known(plan.graph.outputs)
            later = [_common(*pair) for pair in zip(known, found, states, plan.outs, strict=True)]
            joint = tuple(
                joined(a, b, d) for a, b, (d, _) in zip(states, plan.outs, later, strict=True)
            )
            self._walk.restore(saved)
            if joint == states and _same(later, known):
                break
            states, known = joint, later
        region = self._body(op, "body", known, states)
        body = region.planned(states, levels, states, f"the next round of {op.name}")
        region = self._body(op, "cond", known, states)
        condition = region.planned(states, levels, [REPLICATED], f"the condition of {op.name}")
        self._walk.loops -= 1
        self.give(op.outputs, known)
        return Decision(states, states, how="loop"), (body, condition)

    def _tried_branches(
        self, op: Any, states: tuple[State, ...], level: int
    ) -> tuple[list[Plan], list[list[Known]], int]:
        """Returns plans of both branches, what is known of results, and the collectives' number."""
        saved, before = self._walk.saved, len(self._walk.collectives)
        plans, found = [], []
        for name in ("then_branch", "else_branch"):
            region = self._body(op, name, self.known(op.inputs[1:]), states)
            plans.append(region.planned(states, [level] * len(states), None, ""))
            found.append(region.known(plans[-1].graph.outputs))
        count = len(self._walk.collectives) - before
        self._walk.restore(saved)
        return plans, found, count

    def _branches(
        self, op: Any, states: tuple[State, ...], level: int
    ) -> tuple[Decision, tuple[Plan, ...]]:
        names, inputs = ("then_branch", "else_branch"), op.inputs[1:]
        known = self.known(inputs)
        plans, found, count = self._tried_branches(op, states[1:], level)
        if count:
            # Sums that a branch needs are made before the branch, with all other sums.
            whole = tuple(REPLICATED if s == PARTIAL else s for s in states[1:])
            tried, found_then, fewer = self._tried_branches(op, whole, level)
            if fewer < count:
                states, plans, found = (states[0], *whole), tried, found_then
                reason = f"If {op.name}"
                level = max(
                    [
                        level,
                        *(self._bring(t, w, reason) for t, w in zip(inputs, whole, strict=True)),
                    ]
                )
        levels, outs = [level] * len(inputs), [plan.outs for plan in plans]
        both = [_common(*pair) for pair in zip(*found, *outs, strict=True)]
        joint = [joined(a, b, d) for a, b, (d, _) in zip(*outs, both, strict=True)]
        plans = []
        for name in names:
            region = self._body(op, name, known, states[1:])
            plans.append(region.planned(states[1:], levels, joint, f"the result of {op.name}"))
        self.give(op.outputs, both)
        return Decision((REPLICATED, *states[1:]), tuple(joint), how="cond"), tuple(plans)


def _common(one: Known, other: Known, state: State, other_state: State) -> Known:
    """Returns what is known of a tensor of one of two forms. An empty list fits any form."""
    values = common_values(one[1], other[1])
    if EMPTY in (state, other_state):
        return (other if state == EMPTY else one)[0], values
    dims, others = one[0], other[0]
    if dims is None or others is None or len(dims) != len(others):
        return None, values
    return tuple(a if a == b else None for a, b in zip(dims, others, strict=True)), values


def _same(one: Sequence[Known], other: Sequence[Known]) -> bool:
    return all(a[0] == b[0] and same_values(a[1], b[1]) for a, b in zip(one, other, strict=True))


def _taken(op: Any, state: State) -> State:
    """Returns the state in which a rule sees an input."""
    asserts = op.type == "Assert" or is_guard(op)
    return REPLICATED if state == CONJUNCT and not asserts else state


def _with_handles(states: tuple[State, ...]) -> tuple[State, ...]:
    return tuple(s if s == HANDLE else REPLICATED for s in states)
