"""Each rule, on random shapes, axes of the rows and shares: whole and partitioned agree.

Every decision is checked by itself as well (`Verified`), and that the rule is used: no operation
of a case is computed whole by every worker, unless its name says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

tf = pytest.importorskip("tensorflow")

from hvd_elastic_keras.step.partition.captured_step import capture
from hvd_elastic_keras.step.partition.plan import Analysis
from hvd_elastic_keras.step.partition.planning.analysis import analysed
from tests.harness.lockstep import assert_close, take_step

Function = Callable[..., Any]
EXAMPLES = 5
"""Random shapes for each case."""


@st.composite
def shares(draw: Any, most_workers: int = 3) -> list[int]:
    """Rows of each worker, two at least in all; a worker may have none."""
    drawn = draw(st.lists(st.integers(0, 4), min_size=2, max_size=most_workers))
    return [drawn[0] + 2, *drawn[1:]]


@st.composite
def batches(draw: Any) -> tuple[list[Any], list[int], int]:
    """Two tensors of three axes and a column of numbers, the shares, and an axis for the rows."""
    parts = draw(shares())
    rows, inner = sum(parts), [draw(st.integers(1, 3)) for _ in range(2)]
    random = np.random.default_rng(draw(st.integers(0, 99)))
    x, y = (random.normal(size=(rows, *inner)) for _ in range(2))
    return [x, y, random.integers(0, 4, rows)], parts, draw(st.integers(0, 1))


def compared(function: Function, batch: list[Any], parts: list[int]) -> Analysis:
    """Computes it whole and partitioned."""
    spec = tuple(tf.TensorSpec([None, *b.shape[1:]], b.dtype) for b in batch)
    captured = capture(lambda data: tf.nest.flatten(function(*data)), spec)
    analysis = analysed(captured, sum(parts))
    found, _ = take_step(captured, analysis, batch, parts, verify=True)
    expected = tf.nest.flatten(function(*map(tf.constant, batch)))
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, "the result")
    return analysis


def moved(tensor: Any, axis: int) -> Any:
    """With the rows along this axis."""
    return tf.transpose(tensor, {0: [0, 1, 2], 1: [1, 0, 2]}[axis])


WITH_ROWS: dict[str, Function] = {
    "a function of each element": lambda x, y, k: tf.tanh(x) + tf.exp(-y),
    "weights are broadcast": lambda x, y, k: x * tf.constant([[2.0]], tf.float64) + y[..., :1],
    "rows of fewer axes": lambda x, y, k: x - tf.reduce_sum(y, 2, keepdims=True),
    "a selection": lambda x, y, k: tf.where(x > y, x, tf.zeros_like(y)),
    "sums within rows": lambda x, y, k: tf.reduce_sum(x, -1),
    "extremes within rows": lambda x, y, k: tf.reduce_max(x, -1, keepdims=True) + y,
    "a new axis and it goes": lambda x, y, k: tf.squeeze(x[..., None] * 2.0, -1) + y,
    "a new axis before": lambda x, y, k: tf.squeeze(tf.expand_dims(x, 0), 0) + y,
    "axes change places": lambda x, y, k: tf.transpose(x, [2, 1, 0]) + tf.transpose(y, [2, 1, 0]),
    "joined": lambda x, y, k: tf.concat([x, y], 2) * 2.0,
    "stacked": lambda x, y, k: tf.stack([x, y], 1) * 2.0,
    "cut": lambda x, y, k: tf.unstack(tf.stack([x, y, x + y], -1), axis=-1),
    "split": lambda x, y, k: tf.split(tf.concat([x, y], 2), 2, 2),
    "a part of the last axis": lambda x, y, k: x[..., :1] + y[..., -1:],
    "turned round within rows": lambda x, y, k: tf.reverse(x, [2]) + y,
    "sums so far within rows": lambda x, y, k: tf.cumsum(x, 2) + y,
    "the place of the largest": lambda x, y, k: tf.argmax(tf.concat([x, y], 2), 2),
    "repeated within rows": lambda x, y, k: tf.tile(x, [1, 1, 2]),
    "padded within rows": lambda x, y, k: tf.pad(x, [[0, 0], [0, 0], [1, 2]]) * 2.0,
    "ones like rows": lambda x, y, k: tf.ones_like(x) * y + tf.ones(tf.shape(x), x.dtype),
    "spread to the shape of rows": lambda x, y, k: tf.broadcast_to(x[..., :1], tf.shape(y)) + y,
    "softmax": lambda x, y, k: tf.nn.softmax(tf.concat([x, y], 2)),
    "the largest": lambda x, y, k: tf.math.top_k(tf.concat([x, y], 2), 2).values,
    "solved": lambda x, y, k: tf.linalg.solve(squares(x), squares(y)),
    "a matrix with a diagonal": lambda x, y, k: tf.linalg.diag(x) + 1.0,
    "times a matrix": lambda x, y, k: tf.einsum("abc,cd->abd", x, fixed(x.shape[2], 2)),
    "gathered within rows": lambda x, y, k: tf.gather(x, [0, 0], axis=2),
    "scattered within rows": lambda x, y, k: tf.transpose(
        tf.tensor_scatter_nd_max(
            tf.transpose(x, [2, 0, 1]),
            [[0], [0]],
            tf.transpose(tf.stack([y, y])[..., 0], [0, 1, 2]),
        )
    ),
    "put in place within rows": lambda x, y, k: tf.tensor_scatter_nd_update(
        tf.transpose(x, [2, 0, 1]), [[0]], tf.transpose(y, [2, 0, 1])[-1:]
    ),
    "in the frequency domain": lambda x, y, k: tf.abs(tf.signal.fft2d(within(x, y))),
    "in classes": lambda x, y, k: tf.raw_ops.Bucketize(input=x, boundaries=[-0.5, 0.5]),
}
"""Of x and y, whose rows are along one of the first two axes; k has a number for each row."""
FROM_ROWS: dict[str, Function] = {
    "a sum": lambda x, y, k: tf.reduce_sum(x, 0),
    "a sum of all": lambda x, y, k: tf.reduce_sum(x),
    "a mean": lambda x, y, k: tf.reduce_mean(x, [0, 1], keepdims=True),
    "the largest of all": lambda x, y, k: tf.reduce_max(x, 0) + tf.reduce_min(y),
    "whether any is": lambda x, y, k: tf.reduce_any(x > 1.0) | tf.reduce_all(y > 0.0, 0),
    "half of the sum of squares": lambda x, y, k: tf.nn.l2_loss(x),
    "the number of rows": lambda x, y, k: tf.shape(x)[0] * 2 + tf.size(y),
    "a product of two": lambda x, y, k: tf.einsum("abc,abd->cd", x, y),
    "a matrix product over rows": lambda x, y, k: tf.matmul(x[:, 0], y[:, 0], transpose_a=True),
    "sums by numbers": lambda x, y, k: tf.math.unsorted_segment_sum(x, k, 4),
    "counted": lambda x, y, k: tf.math.bincount(k, minlength=4, maxlength=4),
    "weights added by numbers": lambda x, y, k: tf.math.bincount(
        k, weights=x[:, 0, 0], minlength=4, maxlength=4
    ),
    "scattered": lambda x, y, k: tf.scatter_nd(k[:, None], x, [4, *x.shape[1:]]),
    "looked up and added": lambda x, y, k: tf.reduce_sum(tf.gather(fixed(4, 2), k), 0),
    "one hot": lambda x, y, k: tf.reduce_sum(tf.one_hot(k, 4, dtype=tf.float64), 0),
    "a bias's gradient": lambda x, y, k: tf.raw_ops.BiasAddGrad(out_backprop=x),
    "a flattened sum": lambda x, y, k: tf.reduce_sum(tf.reshape(x, [tf.shape(x)[0], -1]), 0),
    "axes before are merged": lambda x, y, k: tf.reduce_sum(tf.reshape(x, [-1, x.shape[2]]), 0),
}
"""Of x and y with the rows first: all become partial sums, or are reduced at once."""
OF_PARTIAL: dict[str, Function] = {
    "negated": lambda s, t: -s,
    "added": lambda s, t: s + t * 2.0,
    "one half is whole": lambda s, t: s + 3.0,
    "scaled": lambda s, t: s * 3.0 / 7.0,
    "of another form": lambda s, t: tf.transpose(tf.reshape(s, [-1, 1])),
    "a part": lambda s, t: tf.reduce_sum(s[:1], 0) + tf.pad(t, [[0, 0], [0, 0]])[0],
    "joined": lambda s, t: tf.concat([s, t], 0),
    "times a matrix": lambda s, t: tf.matmul(s, fixed(s.shape[1], 2)),
    "as another type": lambda s, t: tf.cast(tf.cast(s, tf.float32), tf.float64),
    "selected": lambda s, t: tf.where(fixed(1, 1) > 0.0, s, t),
    "scattered": lambda s, t: tf.tensor_scatter_nd_add(s, [[0]], t[:1]),
    "put in place": lambda s, t: tf.tensor_scatter_nd_update(s, [[0]], t[:1]),
    "spread": lambda s, t: tf.broadcast_to(s, [2, *s.shape]) + 0.0 * tf.tile(t, [1, 1]),
}
"""Of two partial sums, with two axes: one round of reductions at the end."""
NOT_LINEAR: dict[str, Function] = {
    "squared": lambda s, t: s * s,
    "absolute": lambda s, t: tf.abs(s),
    "the other one divided by it": lambda s, t: 1.0 / s,
    "each by the other": lambda s, t: s * t,
    "a condition": lambda s, t: tf.where(s > 0.0, s, t),
    "rounded": lambda s, t: tf.cast(s, tf.int32),
}
MIXES_ROWS: dict[str, Function] = {
    "sorted": lambda x, y, k: tf.sort(x, 0),
    "sums so far": lambda x, y, k: tf.cumsum(x, 0),
    "turned round": lambda x, y, k: tf.reverse(x, [0]) + y,
    "some rows": lambda x, y, k: x[: tf.shape(x)[0] // 2],
    "all but the first row": lambda x, y, k: x[1:] * 2.0,
    "joined along the rows": lambda x, y, k: tf.concat([x, y], 0) * 2.0,
    "rows by numbers": lambda x, y, k: tf.gather(x, k % 2) + y,
    "each with each": lambda x, y, k: tf.einsum("abc,dbc->ad", x, y),
    "rows in the midst": lambda x, y, k: (
        tf.reshape(tf.transpose(tf.concat([x, x], 1), [1, 0, 2]), [-1]) * 2.0
    ),
    "chosen rows": lambda x, y, k: tf.boolean_mask(x, k > 1),
    "repeated rows": lambda x, y, k: tf.tile(x, [2, 1, 1]) * 2.0,
    "scattered to rows": lambda x, y, k: tf.tensor_scatter_nd_add(x, [[0]], y[:1]) * 2.0,
    "whether a number is there": lambda x, y, k: tf.math.bincount(
        k, minlength=4, maxlength=4, binary_output=True
    ),
    "differences of pairs, and their gradient": lambda x, y, k: pairs(x, tf.abs),
    "products of pairs, and their gradient": lambda x, y, k: pairs(x, tf.sin, tf.multiply),
    "padded with rows": lambda x, y, k: tf.pad(x, [[0, 1], [0, 0], [0, 0]]) * 2.0,
    "at most so many rows": lambda x, y, k: tf.reduce_sum(x[: tf.minimum(tf.shape(x)[0], 3)], 0),
    "at least so many rows": lambda x, y, k: (
        tf.pad(x, [[0, tf.maximum(0, 8 - tf.shape(x)[0])], [0, 0], [0, 0]]) * 2.0
    ),
}
"""With the rows first."""


def pairs(x: Any, function: Any, both: Any = tf.subtract) -> Any:
    """A mean over all pairs of rows, and its gradient, for which shapes have rows twice."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        each = tf.reduce_sum(function(both(x[:, None], x[None])), [2, 3])
        mean = tf.reduce_mean(each**2)
    return mean, tape.gradient(mean, x)


def within(x: Any, y: Any) -> Any:
    """Matrices of complex numbers behind the first two axes."""
    return tf.complex(x, y)[..., None] * tf.constant([1.0, 2.0], tf.complex128)


def squares(x: Any) -> Any:
    """Matrices that have an inverse, for each element of the first two axes."""
    return x[..., None] * x[..., None, :] + 3.0 * tf.eye(x.shape[-1], dtype=x.dtype)


def fixed(*shape: int) -> Any:
    """A tensor that all workers have."""
    return tf.constant(np.arange(1.0, 1.0 + np.prod(shape)).reshape(shape) / 7.0)


@pytest.mark.parametrize("name", WITH_ROWS)
@settings(max_examples=EXAMPLES)
@given(drawn=batches())
def test_rows_stay_rows_along_any_axis(name: str, drawn: Any) -> None:
    batch, parts, axis = drawn

    def function(x: Any, y: Any, k: Any) -> Any:
        return WITH_ROWS[name](moved(x, axis), moved(y, axis), k)

    analysis = compared(function, batch, parts)
    assert not analysis.whole
    assert {c.what for c in analysis.collectives} == {"allgather"}, "of the results"


@pytest.mark.parametrize("name", FROM_ROWS)
@settings(max_examples=EXAMPLES)
@given(drawn=batches())
def test_what_is_taken_of_all_rows_is_reduced(name: str, drawn: Any) -> None:
    batch, parts, _ = drawn
    analysis = compared(FROM_ROWS[name], batch, parts)
    assert not analysis.whole
    assert {c.what for c in analysis.collectives} <= {"allreduce"}


@pytest.mark.parametrize("name", OF_PARTIAL)
@settings(max_examples=EXAMPLES)
@given(drawn=batches())
def test_partial_sums_stay_partial_through_what_is_linear(name: str, drawn: Any) -> None:
    batch, parts, _ = drawn

    def function(x: Any, y: Any, k: Any) -> Any:
        # What is not linear comes behind, so that the reduction stands where it is cheapest.
        return OF_PARTIAL[name](tf.reduce_sum(x, 0), tf.reduce_sum(y, 0))

    analysis = compared(function, batch, parts)
    assert analysis.num_rounds == 1
    assert {c.what for c in analysis.collectives} == {"allreduce"}


@pytest.mark.parametrize("name", NOT_LINEAR)
@settings(max_examples=EXAMPLES)
@given(drawn=batches())
def test_partial_sums_are_reduced_before_what_is_not_linear(name: str, drawn: Any) -> None:
    batch, parts, _ = drawn

    def function(x: Any, y: Any, k: Any) -> Any:
        return NOT_LINEAR[name](tf.reduce_sum(x, 0), tf.reduce_sum(y, 0))

    analysis = compared(function, batch, parts)
    assert {c.what for c in analysis.collectives} == {"allreduce"}


@pytest.mark.parametrize("name", MIXES_ROWS)
@settings(max_examples=EXAMPLES)
@given(drawn=batches())
def test_what_mixes_rows_is_computed_whole_by_every_worker(name: str, drawn: Any) -> None:
    batch, parts, _ = drawn
    analysis = compared(MIXES_ROWS[name], batch, parts)
    assert analysis.whole


OF_IMAGES: dict[str, Function] = {
    "patches": lambda x: tf.image.extract_patches(
        x, [1, 2, 2, 1], [1, 2, 2, 1], [1, 1, 1, 1], "VALID"
    ),
    "larger": lambda x: tf.image.resize(x, (7, 5), "nearest"),
    "by areas": lambda x: tf.image.resize(x, (2, 3), "area"),
    "normalised across channels": lambda x: tf.nn.local_response_normalization(
        tf.cast(x, "float32")
    ),
    "colours": lambda x: tf.image.hsv_to_rgb(tf.image.rgb_to_hsv(tf.sigmoid(x))),
}
"""Of images with the rows first, with their gradients."""


@pytest.mark.parametrize("name", OF_IMAGES)
@settings(max_examples=EXAMPLES)
@given(parts=shares())
def test_each_row_of_images_is_computed_by_itself(name: str, parts: list[int]) -> None:
    images = np.random.default_rng(len(parts)).normal(size=(sum(parts), 4, 4, 3))

    def function(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            found = OF_IMAGES[name](x)
            total = tf.reduce_sum(found**2)
        gradient = tape.gradient(total, x) if name in WITH_GRADIENTS else x
        return found, gradient

    analysis = compared(function, [images], parts)
    assert not analysis.whole


FILTERS = {
    "dilated": lambda x, w: tf.nn.convolution(x, w, 1, "SAME", dilations=[2, 3]),
    "dilated, rows at the edge left out": lambda x, w: tf.nn.convolution(
        x, w, 1, "VALID", dilations=[2, 2]
    ),
    "of channels by themselves, dilated": lambda x, w: tf.nn.depthwise_conv2d(
        x, w, [1, 1, 1, 1], "SAME", dilations=[2, 2]
    ),
    "in time, dilated": lambda x, w: tf.nn.convolution(x[:, 0], w[0], 1, "SAME", dilations=[2]),
}
"""Of images and filters."""


@pytest.mark.parametrize("name", FILTERS)
@settings(max_examples=EXAMPLES)
@given(parts=shares())
def test_dilated_convolutions_need_the_sum_of_the_gradients_of_filters_alone(
    name: str, parts: list[int]
) -> None:
    random = np.random.default_rng(len(parts))
    images, filters = random.normal(size=(sum(parts), 5, 6, 3)), random.normal(size=(2, 2, 3, 2))

    def function(x: Any) -> Any:
        weights = tf.constant(filters)
        with tf.GradientTape() as tape:
            tape.watch([x, weights])
            total = tf.reduce_sum(FILTERS[name](x, weights) ** 2)
        gradient, of_filters = tape.gradient(total, [x, weights])
        return tf.reduce_sum(gradient**2, [1, 2, 3]), of_filters

    analysis = compared(function, [images], parts)
    assert not analysis.whole
    assert [c.what for c in analysis.collectives if c.num_bytes > 90] == ["allreduce"]


OF_BLOCKS: dict[str, Function] = {
    "what has no rule": lambda b, x: tf.raw_ops.LeakyRelu(features=tf.cumsum(b, 0)),
    "two of them": lambda b, x: b * b,
    "other rows": lambda b, x: b + tf.concat([x, x, x, x], 0)[:, :2, :2],
    "a part of them": lambda b, x: b[: tf.shape(x)[0]],
    "other blocks": lambda b, x: tf.batch_to_space(b, [4, 1], [[0, 0], [0, 0]]),
    "blocks of blocks": lambda b, x: tf.space_to_batch(b, [2, 1], [[0, 0], [0, 0]]),
    "the size": lambda b, x: tf.shape(b) + tf.size(b),
    "a sum": lambda b, x: tf.reduce_sum(b, 0),
    "filters of all": lambda b, x: tf.raw_ops.Conv2DBackpropFilter(
        input=tf.ones_like(b[:1]) * tf.ones([4 * tf.shape(x)[0], 1, 1, 1], tf.float64),
        filter_sizes=[1, 1, 3, 3],
        out_backprop=b,
        strides=[1, 1, 1, 1],
        padding="SAME",
    ),
}
"""Of images in 2 by 2 blocks, and of the images."""


@pytest.mark.parametrize("name", OF_BLOCKS)
@settings(max_examples=EXAMPLES)
@given(parts=shares())
def test_rows_in_blocks_are_put_in_order_for_whatever_else(name: str, parts: list[int]) -> None:
    images = np.random.default_rng(len(parts)).normal(size=(sum(parts), 4, 4, 3))

    def function(x: Any) -> Any:
        return OF_BLOCKS[name](tf.space_to_batch(x, [2, 2], [[0, 0], [0, 0]]), x)

    compared(function, [images], parts)


WITH_GRADIENTS = {"larger", "normalised across channels"}
TABLE = np.arange(20.0).reshape(5, 4)
ON_VARIABLES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "rows are read": lambda v, x, k: tf.gather(v, k),
    "elements are read": lambda v, x, k: tf.gather_nd(v, tf.stack([k, k], 1)),
    "rows are added": lambda v, x, k: v.scatter_add(tf.IndexedSlices(x, k)),
    "rows are put": lambda v, x, k: v.scatter_update(tf.IndexedSlices(0.0 * x, k)),
    "the largest stay": lambda v, x, k: v.scatter_max(tf.IndexedSlices(4.0 * x, k)),
    "the smallest stay": lambda v, x, k: v.scatter_min(tf.IndexedSlices(4.0 * x, k)),
    "rows are put by numbers": lambda v, x, k: v.scatter_nd_update(k[:, None], 0.0 * x),
    "elements are added": lambda v, x, k: v.scatter_nd_add(tf.stack([k, k], 1), x[:, 0]),
    "elements are taken away": lambda v, x, k: v.scatter_nd_sub(tf.stack([k, k], 1), x[:, 0]),
    "a row is put": lambda v, x, k: v[1].assign(tf.reduce_sum(x, 0)),
    "a part is put": lambda v, x, k: v[1:3, ::2].assign(tf.fill([2, 2], tf.reduce_mean(x))),
}
"""Of a variable, rows and numbers."""


@pytest.mark.parametrize("name", ON_VARIABLES)
@settings(max_examples=EXAMPLES)
@given(parts=shares())
def test_variables_are_read_and_written_at_places_of_all_rows(name: str, parts: list[int]) -> None:
    random = np.random.default_rng(len(parts))
    batch = [random.normal(size=(sum(parts), 4)), random.integers(0, 4, sum(parts))]
    variable = tf.Variable(TABLE)

    def step(data: Any) -> Any:
        found = ON_VARIABLES[name](variable, *data)
        return [variable.read_value(), found if name.endswith("read") else tf.constant(0.0)]

    captured = capture(step, tuple(tf.TensorSpec([None, *b.shape[1:]], b.dtype) for b in batch))
    outputs, values = take_step(captured, analysed(captured, sum(parts)), batch, parts, verify=True)
    expected = step(tuple(map(tf.constant, batch)))
    for one, other in zip(outputs, expected, strict=True):
        assert_close(one, other, "the result")
    (value,) = values.values()
    assert_close(value, variable, "the variable")
    assert name.endswith("read") == (not captured.assigned)


def test_what_nobody_knows_to_do_to_a_variable_is_refused() -> None:
    from hvd_elastic_keras.step.partition.planning.decide import NotPartitionedError

    variable = tf.Variable([1.0, 2.0])

    def step(data: Any) -> Any:
        variable.scatter_mul(tf.IndexedSlices(data[0][:1, 0], [0]))
        return []

    captured = capture(step, (tf.TensorSpec([None, 2], tf.float32),))
    with pytest.raises(NotPartitionedError, match="ResourceScatterMul"):
        analysed(captured, 8)
