"""Names of tensors in a plan: which are the same, and which an operation reads or changes."""

from __future__ import annotations

from hvd_elastic_keras.step.partition.operations.states import HANDLE
from hvd_elastic_keras.step.partition.plan import Plan, PlannedOperation

ALIAS = "alias"


class Names:
    """Names of tensors and of variables' handles. Tensors that are the same have one name."""

    def __init__(self, plan: Plan) -> None:
        self._first: dict[str, str] = {}
        for planned in plan.operations:
            op, decision = planned.op, planned.decision
            if decision.how == ALIAS or HANDLE in decision.out:
                for tensor, result in zip(op.inputs, op.outputs, strict=True):
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
