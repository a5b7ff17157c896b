"""Operations that compute each element from the elements at its place in broadcast inputs.

The last section has operations that fail if something is wrong: `tf.debugging.assert_*` and
`check_numerics`. A condition on rows must hold for all rows. So each worker checks its own rows,
and no worker waits for others. A worker that finds a wrong row fails, and this ends the job.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from hvd_elastic_keras.keras_internals.traced_graphs import nodes_within
from hvd_elastic_keras.step.partition.rules.states import (
    EMPTY,
    PARTIAL,
    REPLICATED,
    Decision,
    How,
    Rule,
    State,
    View,
    as_rows,
    is_sharded,
    known,
    names,
    sharded,
)

LINEAR = names(
    "Identity EnsureShape Neg StopGradient PreventGradient Snapshot Real Imag DebugIdentity"
)
"""f(a + b) = f(a) + f(b)."""
SUMS = names("Add AddV2 Sub AddN")
"""Linear in all inputs together."""
LINEAR_IN_FIRST = frozenset(("RealDiv", "DivNoNan", "Div", "MulNoNan"))
LINEAR_IN = {
    **dict.fromkeys(names("RsqrtGrad SqrtGrad TanhGrad SigmoidGrad ReciprocalGrad InvGrad"), 1),
    **dict.fromkeys(names("ReluGrad Relu6Grad LeakyReluGrad EluGrad SeluGrad"), 0),
    **dict.fromkeys(names("SoftplusGrad SoftsignGrad"), 0),
}
"""Operations that compute gradients. Each is linear in the gradient that it receives: the input of
this number."""
SELECTIONS = frozenset(("Select", "SelectV2"))
OTHERS = names(
    """
    Abs Acos Acosh Angle Asin Asinh Atan Atan2 Atanh BesselI0e BesselI1e Betainc BitwiseAnd
    BitwiseOr BitwiseXor Bucketize Cast Ceil ClipByValue Complex ComplexAbs Conj
    Cos Cosh Digamma Elu Equal Erf Erfc Erfinv Exp Expm1 Floor FloorDiv FloorMod Greater
    GreaterEqual Igamma Igammac Inv Invert IsFinite IsInf IsNan LeakyRelu LeftShift Less LessEqual
    Lgamma Log Log1p
    LogicalAnd LogicalNot LogicalOr Maximum Minimum Mod Ndtri NextAfter NotEqual OnesLike Pow
    Reciprocal Relu Relu6 RightShift Rint Round Rsqrt Selu Sigmoid Sign Sin Sinh Softplus
    Softsign Sqrt Square SquaredDifference Tan Tanh TruncateDiv TruncateMod Xdivy Xlog1py Xlogy
    ZerosLike
    """
)

CONDITIONS = frozenset(("If", "StatelessIf"))
WITHIN_GUARDS = frozenset(("Assert", "Const", "Identity", "NoOp"))


def elementwise(v: View) -> Decision:
    """Rows stay rows. Partial sums stay partial through linear operations."""
    if EMPTY in v.ins or v.op.outputs[0].dtype.name == "variant":
        return _of_lists(v)
    if v.ins[0].blocks is not None and len(v.ins) == 1:
        return v.run(v.ins[0], out=v.ins[0])
    if v.has_rows:
        return _of_rows(v)
    if PARTIAL in v.ins:
        return _of_partial(v)
    return v.replicated()


def _of_lists(v: View) -> Decision:
    """Sums and copies of TensorLists."""
    states = {s for s in v.ins if s != EMPTY}
    if len(states) > 1:
        return v.replicated("lists in different states")
    return Decision(v.ins, (states.pop() if states else EMPTY,) * len(v.op.outputs))


def _of_rows(v: View) -> Decision:
    if v.kind == "Select" and v.rank(0) != v.rank(1):
        return v.replicated("a condition for whole rows")
    rank = max(v.rank(i) for i in range(len(v.ins)))
    # Places count from the last axis, as shapes are aligned. The operand with most axes decides.
    largest = max((i for i, s in enumerate(v.ins) if is_sharded(s)), key=v.rank)
    place = v.ins[largest].at_axis - v.rank(largest)
    want: list[State] = []
    crossed = False
    for i, state in enumerate(v.ins):
        axis = v.rank(i) + place
        crossed = crossed or (is_sharded(state) and state.axis != axis)
        wanted = as_rows(state, v.idims[i], axis)
        if wanted is None:
            return v.replicated("it is unknown whether all inputs have rows")
        want.append(wanted)
    why = "rows along different axes" if crossed else ""
    return v.run(*want, out=sharded(rank + place), whole=why)


def _of_partial(v: View) -> Decision:
    partial = [s == PARTIAL for s in v.ins]
    as_it_is = tuple(PARTIAL if p else REPLICATED for p in partial)
    if v.kind in LINEAR or (v.kind == "Cast" and _widens(v)):
        return v.run(*as_it_is, out=PARTIAL)
    if v.kind in SUMS:
        return v.run(*[PARTIAL] * len(partial), out=PARTIAL)
    alone = sum(partial) == 1
    if alone and (v.kind == "Mul" or (v.kind in LINEAR_IN_FIRST and partial[0])):
        return v.run(*as_it_is, out=PARTIAL)
    if alone and LINEAR_IN.get(v.kind) == partial.index(True):
        return v.run(*as_it_is, out=PARTIAL)
    if v.kind in SELECTIONS and not partial[0]:
        return v.run(REPLICATED, PARTIAL, PARTIAL, out=PARTIAL)
    if v.kind in ("ZerosLike", "OnesLike"):
        return v.run(PARTIAL, out=REPLICATED)
    return v.replicated()


def _widens(v: View) -> bool:
    """Whether a cast of partial sums loses nothing. Sums in a narrower type round differently.

    A sum in half precision is made before the cast, not after it. It may be too large for half
    precision, and an optimizer that scales losses has to see this.
    """
    before, after = v.op.inputs[0].dtype, v.op.outputs[0].dtype
    return bool(before.is_floating and after.is_floating and 4 <= before.size <= after.size)


def bitcast(v: View) -> Decision:
    """The same bits as another type. A type of another size adds or removes an axis."""
    same = v.op.inputs[0].dtype.size == v.op.outputs[0].dtype.size
    return v.only(0, v.ins[0]) if same and is_sharded(v.ins[0]) else v.replicated("other sizes")


def bias_add(v: View) -> Decision:
    """The bias is added along the last axis, or along axis 1 ("NCHW")."""
    rank = len(known(v.idims[0]))
    axis = rank - 1 if v.attr("data_format") == b"NHWC" else 1
    if is_sharded(v.ins[0]) and v.ins[0].axis != axis:
        return v.only(0, v.ins[0])
    if v.ins == (PARTIAL, PARTIAL):
        return v.run(PARTIAL, PARTIAL, out=PARTIAL)
    return v.replicated("a bias along the rows")


RULES: dict[str, Rule] = dict.fromkeys(
    LINEAR | SUMS | {"Mul"} | LINEAR_IN_FIRST | SELECTIONS | OTHERS | LINEAR_IN.keys(), elementwise
)
RULES["BiasAdd"] = bias_add
RULES["Bitcast"] = bitcast


def is_guard(op: Any) -> bool:
    """Whether an operation is a condition that only asserts, in the form that TensorFlow makes."""
    if op.type not in CONDITIONS:
        return False
    _, *within = nodes_within(op)
    kinds = {node.op for node in within}
    return "Assert" in kinds and kinds <= WITHIN_GUARDS


def assertion(v: View) -> Decision:
    """Takes its inputs as a worker has them: its condition, and values to show if it fails."""
    return Decision(v.ins, (REPLICATED,) * len(v.op.outputs), how=How.ASSERTION)


def guard(v: View) -> Decision:
    """An assertion in the branch of a condition. Other conditions have no rule."""
    return assertion(v) if is_guard(v.op) else v.replicated("no rule")


def check_numerics(v: View) -> Decision:
    """Fails for numbers that are not finite."""
    decision = elementwise(v)
    return dataclasses.replace(decision, how=How.ASSERTION) if v.has_rows else decision


RULES |= {
    "Assert": assertion,
    **dict.fromkeys(CONDITIONS, guard),
    "CheckNumerics": check_numerics,
}
