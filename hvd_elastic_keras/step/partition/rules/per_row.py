"""Operations that compute each row from the same row of the inputs, in any way."""

from __future__ import annotations

from hvd_elastic_keras.step.partition.operations.dimensions import is_rows, rows_axes
from hvd_elastic_keras.step.partition.operations.states import (
    REPLICATED,
    Decision,
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
