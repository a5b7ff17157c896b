"""Operations that compute each row from the same row of the inputs, in any way.

The last section has random numbers from a seed: each worker can draw all of them, or only its own
rows. Random bits come from a counter-based generator (Philox; Salmon et al., "Parallel random
numbers: as easy as 1, 2, 3", SC 2011), which makes blocks of 128 bits. Any block can be made
without the blocks before it. So a worker draws only its rows if each number takes the same number
of bits. These rows equal the rows of the whole draw, bit for bit. In a graph, the whole is drawn
only if an operation needs it.
"""

from __future__ import annotations

from typing import Any

from hvd_elastic_keras.step.partition.rules.dimensions import is_rows, rows_axes
from hvd_elastic_keras.step.partition.rules.states import (
    REPLICATED,
    Decision,
    How,
    Rule,
    View,
    is_sharded,
    known,
    names,
    sharded,
)

FIRST_AXIS = names(
    """
    MaxPool MaxPoolGrad MaxPoolGradGrad AvgPool MaxPool3D MaxPool3DGrad AvgPool3D
    SparseSoftmaxCrossEntropyWithLogits SoftmaxCrossEntropyWithLogits InTopKV2 ResizeBilinear
    ResizeNearestNeighbor ResizeBicubic ResizeBilinearGrad ResizeBicubicGrad
    ImageProjectiveTransformV3 SpaceToDepth DepthToSpace AdjustHue AdjustSaturation RGBToHSV
    HSVToRGB ExtractImagePatches ExtractVolumePatches LRN LRNGrad ResizeArea
    ResizeNearestNeighborGrad
    """
)
WITH_SIZES = names("AvgPoolGrad AvgPool3DGrad")
"""Their first input is the shape of the output."""
LAST_AXIS = names("Softmax LogSoftmax TopKV2 FFT IFFT RFFT IRFFT")
LAST_TWO_AXES = names(
    """
    MatrixDiagPartV3 MatrixBandPart MatrixInverse Cholesky CholeskyGrad MatrixDeterminant
    LogMatrixDeterminant MatrixSolve MatrixTriangularSolve Qr SelfAdjointEigV2 Svd FFT2D IFFT2D
    RFFT2D IRFFT2D
    """
)

BITS_PER_BLOCK, LEAST_BITS = 128, 32
PHILOX = (1, 3)
"""TensorFlow's numbers of the algorithm. 1 is Philox. With 3, the device chooses: Philox, except on
TPUs."""
KINDS = names(
    """
    StatelessRandomUniformV2 StatelessRandomNormalV2 StatelessRandomUniformIntV2
    StatelessRandomUniformFullIntV2
    """
)
"""Operations that take shape, key, counter and algorithm. (Truncated normal numbers are missing,
because it is unknown how many bits they take.)"""


def first_axis(v: View) -> Decision:
    """Images, or logits with labels. All inputs with rows have them along the first axis."""
    if not v.has_rows:
        return v.replicated()
    if any(is_sharded(s) and s.at_axis != 0 for s in v.ins):
        return v.replicated("rows are not the first axis")
    want = []
    for i, dims in enumerate(v.idims):
        sizes = i == 0 and v.kind in WITH_SIZES
        first = None if sizes or not dims else dims[0]
        if dims is None or (dims and first is None and not sizes):
            return v.replicated("it is unknown whether all inputs have rows")
        want.append(sharded(0) if is_rows(first) else REPLICATED)
    local_size = (0, 0) if v.kind in WITH_SIZES else None
    return v.run(*want, out=sharded(0), local_size=local_size)


def _within(v: View, inner: int) -> Decision:
    """All inputs have the same axes before the `inner` last ones, or are numbers for all rows."""
    axes = {s.at_axis for s in v.ins if is_sharded(s)}
    if len(axes) != 1:
        return v.replicated("rows along different axes")
    axis, want = axes.pop(), []
    for i, state in enumerate(v.ins):
        dims = known(v.idims[i])
        if i and not is_sharded(state) and len(dims) <= 1 and not rows_axes(dims):
            want.append(REPLICATED)
        elif axis < len(dims) - inner and is_rows(dims[axis]):
            want.append(sharded(axis))
        else:
            return v.replicated("along the rows")
    return v.run(*want, out=sharded(axis))


def last_axis(v: View) -> Decision:
    """Operations along the last axis only."""
    return _within(v, 1)


def last_two_axes(v: View) -> Decision:
    """Operations on matrices, which lie along the last two axes."""
    return _within(v, 2)


def diagonal(v: View) -> Decision:
    """`MatrixDiagV3`: one diagonal, or several along the last axis but one."""
    number = v.const(1)
    return _within(v, 1 if number is not None and number.size == 1 else 2)


def lookup(v: View) -> Decision:
    """`LookupTableFindV2(table, keys, default)`: tables do not change during a step."""
    return v.only(1, v.ins[1]) if is_sharded(v.ins[1]) else v.replicated()


RULES: dict[str, Rule] = {
    "LookupTableFindV2": lookup,
    **dict.fromkeys(FIRST_AXIS | WITH_SIZES, first_axis),
    **dict.fromkeys(LAST_AXIS, last_axis),
    **dict.fromkeys(LAST_TWO_AXES, last_two_axes),
    "MatrixDiagV3": diagonal,
}


def draws(op: Any) -> bool:
    """Whether an operation makes random numbers from a seed."""
    return op.type.startswith("Stateless") and "key" in (a.name for a in op.op_def.input_arg)


def numbers_per_block(op: Any) -> int:
    """Returns how many numbers are made from one block."""
    return BITS_PER_BLOCK // max(LEAST_BITS, 8 * int(op.outputs[0].dtype.size))


def draw(v: View) -> Decision:
    """Gives a worker the whole draw and its own rows, if rows lie along the first axis."""
    decision = v.replicated()
    algorithm = v.const(3)
    # The low half of a counter from a seed is 0.
    from_seed = v.op.inputs[2].op.type == "StatelessRandomGetKeyCounter"
    if rows_axes(v.odims[0]) != [0] or not from_seed or algorithm not in PHILOX:
        return decision
    return Decision(decision.want, decision.out, how=How.DRAW)


RULES |= dict.fromkeys(KINDS, draw)
