"""Each row of the output from that row of the inputs, in whatever way."""

from __future__ import annotations

from hvd_elastic_keras.step.partition.operations.dimensions import is_rows
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
    ImageProjectiveTransformV3 SpaceToDepth DepthToSpace AdjustContrastv2 AdjustHue
    AdjustSaturation
    """
)
WITH_SIZES = names(
    """
    AvgPoolGrad AvgPool3DGrad
    """
)
"""Their first input is the shape of the output."""
LAST_AXIS = names("Softmax LogSoftmax TopKV2 FFT IFFT RFFT IRFFT MatrixDiagV3 MatrixSetDiagV3")
LAST_TWO_AXES = names(
    """
    MatrixDiagPartV3 MatrixBandPart MatrixInverse Cholesky CholeskyGrad MatrixDeterminant
    LogMatrixDeterminant MatrixSolve MatrixTriangularSolve Qr SelfAdjointEigV2 Svd
    """
)


def first_axis(v: View) -> Decision:
    """Images, or logits with labels: the rows are the first axis of all that have any."""
    if not v.has_rows:
        return v.replicated()
    if any(is_sharded(s) and s.at_axis != 0 for s in v.ins):
        return v.replicated("rows are not the first axis")
    want = []
    for i, dims in enumerate(v.idims):
        sizes = i == 0 and v.kind in WITH_SIZES
        first = None if sizes or not dims else dims[0]
        if dims is None or (dims and first is None and not sizes):
            return v.replicated("nobody knows whether all inputs have rows")
        want.append(sharded(0) if is_rows(first) else REPLICATED)
    local_size = (0, 0) if v.kind in WITH_SIZES else None
    return v.run(*want, out=sharded(0), local_size=local_size)


def _within(v: View, inner: int) -> Decision:
    state = v.ins[0]
    if not v.has_rows:
        return v.replicated()
    if (
        is_sharded(state)
        and state.at_axis < v.rank(0) - inner
        and not any(is_sharded(s) for s in v.ins[1:])
    ):
        if all(not v.idims[i] or v.rank(i) <= 1 for i in range(1, len(v.ins))):
            return v.only(0, state)
        return _alike(v, state.at_axis, inner)
    return v.replicated("along the rows")


def _alike(v: View, axis: int, inner: int) -> Decision:
    """Several inputs with the same leading axes."""
    for i in range(len(v.ins)):
        if v.rank(i) <= axis or not is_rows(known(v.idims[i])[axis]):
            return v.replicated("nobody knows whether all inputs have rows")
    return v.run(*[sharded(axis)] * len(v.ins), out=sharded(axis))


def last_axis(v: View) -> Decision:
    """Along the last axis only."""
    return _within(v, 1)


def last_two_axes(v: View) -> Decision:
    """Matrices."""
    return _within(v, 2)


RULES: dict[str, Rule] = {
    **dict.fromkeys(FIRST_AXIS | WITH_SIZES, first_axis),
    **dict.fromkeys(LAST_AXIS, last_axis),
    **dict.fromkeys(LAST_TWO_AXES, last_two_axes),
}
