"""Finds sums over the workers that are gradients and nothing else, so they may travel in 16 bits.

Such a sum has the form of a trainable variable. All its summands follow from rows alone. It leads
to an assignment of that variable through operations that all workers compute alike. A sum is not a
gradient if the workers use it to compute something of their rows, like the moments of a batch.

`parts_of` groups large gradients into parts. The first parts travel during the backward pass.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.keras_internals.traced_graphs import FUNCTIONS
from hvd_elastic_keras.step.partition.captured_step import WRITES, CapturedStep
from hvd_elastic_keras.step.partition.plan import Names, Plan, PlannedOperation
from hvd_elastic_keras.step.partition.rules.states import EMPTY, HANDLE, PARTIAL, REPLICATED, How

Bits = int
"""A set of sums: bit `i` is the sum `i`."""
ALIKE = frozenset({REPLICATED, HANDLE, EMPTY})

LEAST_BYTES = 16 * 2**20
"""Least total size of gradients that travel in several parts. With fewer bytes, parts would cost
more than they save."""
MOST_PARTS = 4
SMALL = 1 / 256
"""A gradient with a smaller fraction of all bytes is never sent early. It would save nothing, but
could make its part late: busy threads may compute a bias of the last layer after all large products
of the backward pass."""


def gradients_of(captured: CapturedStep, plan: Plan) -> frozenset[str]:
    """Returns the names of sums that are gradients, among the `reductions` of a step's plan.

    Sums in loops and branches are ignored.
    """
    forms = _forms_of_trained(captured)
    names = Names(plan)
    pure = _pure(plan, names)
    sums = [
        tensor
        for tensors in plan.reductions.values()
        for tensor in tensors
        if tensor.dtype == tf.float32
        and tensor.shape.is_fully_defined()
        and tuple(tensor.shape) in forms.values()
        and names.of(tensor.name) in pure
    ]
    ways = _Ways(captured, forms)
    ways.follow(plan, {names.of(t.name): 1 << i for i, t in enumerate(sums)})
    return frozenset(
        tensor.name
        for i, tensor in enumerate(sums)
        if not ways.used_for_rows >> i & 1
        and any(
            bits >> i & 1 and forms[handle] == tuple(tensor.shape)
            for handle, bits in ways.assigned.items()
        )
    )


def _forms_of_trained(captured: CapturedStep) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of trainable variables of more than one element, by their handles."""
    return {
        name: tuple(variable.shape)
        for name, variable in captured.variables.items()
        if variable.trainable and (variable.shape.num_elements() or 0) > 1
    }


# --- where sums come from ----------------------------------------------------------------


def _pure(plan: Plan, names: Names) -> set[str]:
    """Returns partial tensors without summands that all workers have alike, except zeros."""
    found: set[str] = set()
    for planned in plan.operations:
        if planned.decision.how == How.ALIAS or PARTIAL not in planned.decision.out:
            continue
        if all(_adds_nothing(p, found, names) for p in _inner(planned)):
            outs = zip(planned.op.outputs, planned.decision.out, strict=True)
            found.update(names.of(t.name) for t, state in outs if state == PARTIAL)
    return found


def _inner(planned: PlannedOperation) -> Iterator[tuple[PlannedOperation, set[str] | None]]:
    """Yields an operation and the operations of the functions that it calls.

    Each comes with the names of partial tensors in its function; None for the first one.
    """
    yield planned, None
    for body in planned.bodies:
        there = {
            t.name for t, state in zip(body.graph.inputs, body.ins, strict=True) if state == PARTIAL
        }
        for inner in body.operations:
            for one, of_body in _inner(inner):
                yield one, there if of_body is None else of_body
            there |= {t.name for t in inner.op.outputs if PARTIAL in inner.decision.out}


def _adds_nothing(
    found: tuple[PlannedOperation, set[str] | None], pure: set[str], names: Names
) -> bool:
    """Whether an operation's partial inputs have been partial before, or are zeros."""
    planned, of_body = found
    wanted = zip(planned.op.inputs, planned.decision.want, strict=False)
    partial = [t for t, state in wanted if state == PARTIAL]
    if of_body is None:
        return all(names.of(t.name) in pure or _is_zero(t) for t in partial)
    return all(t.name in of_body or _is_zero(t) for t in partial)


def _is_zero(tensor: Any) -> bool:
    op = tensor.op
    while op.type in ("Identity", "Reshape", "BroadcastTo", "Cast"):
        op = op.inputs[0].op
    if op.type in ("ZerosLike", "EmptyTensorList", "TensorListReserve"):
        return True
    if op.type == "Fill":
        op = op.inputs[1].op
    if op.type != "Const":
        return False
    value = tf.get_static_value(op.outputs[0])
    return value is not None and not bool(value.any())


# --- where they lead ---------------------------------------------------------------------


@dataclasses.dataclass
class _Ways:
    """Follows sums through the graph of a step.

    Attributes:
      captured: the step.
      forms: shapes of the variables that matter, by their handles. Computations with their new
        values do not count.
      assigned: the sums from which all workers alike compute the new values of these variables, by
        their handles.
      used_for_rows: the sums from which a worker computes something that other workers do not have.
    """

    captured: CapturedStep
    forms: dict[str, tuple[int, ...]]
    assigned: dict[str, Bits] = dataclasses.field(
        default_factory=lambda: collections.defaultdict(int)
    )
    used_for_rows: Bits = 0
    _in_others: dict[str, Bits] = dataclasses.field(
        default_factory=lambda: collections.defaultdict(int)
    )
    """The sums in the values of other variables, by their handles."""

    def follow(self, plan: Plan, sums: dict[str, Bits]) -> None:
        """Follows sums, by the names of their tensors, through the graph of the step."""
        handles = {t.name: t.name for t in plan.graph.inputs if t.name in self.captured.variables}
        self._through(plan, [0] * len(plan.ins), handles, sums)

    def _through(
        self, plan: Plan, given: Sequence[Bits], handles: dict[str, str], sums: dict[str, Bits]
    ) -> list[Bits]:
        """Returns the sums in the outputs, given the sums in the inputs."""
        names, handles = Names(plan), dict(handles)
        inside = dict(zip((t.name for t in plan.graph.inputs), given, strict=True))

        def of(tensor: Any, state: Any = REPLICATED) -> Bits:
            name = names.of(tensor.name)
            # An operation that takes a summand takes nothing that has travelled.
            found: Bits = inside.get(name, 0)
            return found if state == PARTIAL else found | sums.get(name, 0)

        for planned in plan.operations:
            op, decision = planned.op, planned.decision
            if decision.how == How.ALIAS:
                continue
            known = [handles.get(names.of(t.name)) for t in op.inputs]
            if HANDLE in decision.out and not planned.bodies:
                handles[names.of(op.outputs[0].name)] = known[0] or op.inputs[0].name
                continue
            bits = [of(t, state) for t, state in zip(op.inputs, decision.want, strict=True)]
            if planned.bodies:
                outputs = self._through_functions(planned, bits, known)
            else:
                outputs = [self._through_one(planned, bits, known)] * len(op.outputs)
            for tensor, state, found in zip(op.outputs, decision.out, outputs, strict=True):
                if state == HANDLE:  # has the name of the loop's input
                    continue
                if state in ALIKE:
                    inside[names.of(tensor.name)] = found
                else:
                    self.used_for_rows |= found
        return [of(t) for t in plan.graph.outputs]

    def _through_one(
        self, planned: PlannedOperation, bits: Sequence[Bits], handles: Sequence[str | None]
    ) -> Bits:
        op, decision = planned.op, planned.decision
        found = _union((*bits, *(self._in_others[h] for h in handles if h)))
        if not found:
            return 0
        if decision.whole or not {*decision.want, *decision.out} <= ALIKE:
            self.used_for_rows |= found
            return 0
        if op.type in WRITES and handles[0]:
            where = self.assigned if handles[0] in self.forms else self._in_others
            where[handles[0]] |= found
        return found

    def _through_functions(
        self, planned: PlannedOperation, bits: Sequence[Bits], handles: Sequence[str | None]
    ) -> list[Bits]:
        """Follows sums through a loop until nothing is new, both branches, or a called function."""
        op = planned.op
        skipped = int("then_branch" in FUNCTIONS[op.type])
        beside = bits[0] if skipped else 0  # whether it is assigned depends on the condition
        given = [b | beside for b in bits[skipped:]]
        if not _union((*given, *(self._in_others[h] for h in handles if h))):
            return [0] * len(op.outputs)
        while True:
            before = dict(self._in_others)
            results = [
                self._through(
                    body,
                    given,
                    {
                        t.name: h
                        for t, h in zip(body.graph.inputs, handles[skipped:], strict=True)
                        if h
                    },
                    {},
                )
                for body in planned.bodies
            ]
            if "body" not in FUNCTIONS[op.type]:
                return [_union(each) for each in zip(*results, strict=True)]
            later = [a | b for a, b in zip(given, results[0], strict=True)]
            if later == given and before == self._in_others:
                return given
            given = later


def _union(sets: Iterable[Bits]) -> Bits:
    found = 0
    for one in sets:
        found |= one
    return found


def parts_of(sizes: Sequence[int]) -> list[list[int]]:
    """Returns which tensors travel together.

    Small tensors wait for the last part. Each part is its own collective, which begins while the
    rest of the backward pass is computed. The parts are the same on all workers, because they
    follow from sizes alone.

    Args:
      sizes: bytes of each tensor, in the order in which the tensors are computed.

    Returns:
      The parts, as lists of places in `sizes`. Each place is in one part. The last part has the
      last tensor.
    """
    everything = list(range(len(sizes)))
    if sum(sizes) < LEAST_BYTES:
        return [everything]
    early: list[list[int]] = []
    part: list[int] = []
    for i in everything[:-1]:
        if sizes[i] < SMALL * sum(sizes):
            continue
        part.append(i)
        if MOST_PARTS * sum(sizes[j] for j in part) >= sum(sizes):
            early.append(part)
            part = []
    are_early = set(itertools.chain(*early))
    return [*early, [i for i in everything if i not in are_early]]


def in_order_of_making(plan: Plan, names: Iterable[str]) -> list[str]:
    """Returns names of tensors of a plan, in the order in which the tensors are computed."""
    known = Names(plan)
    made = [p for p in plan.operations if p.decision.how != How.ALIAS]
    places = {known.of(t.name): i for i, p in enumerate(made) for t in p.op.outputs}
    return sorted(names, key=lambda name: places.get(known.of(name), 0))
