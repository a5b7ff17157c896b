"""Batches of all forms: ragged, sparse, with scalars and tables, with several entries for a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from hvd_elastic_keras.data.examples.structure import batched
from hvd_elastic_keras.step.partition.captured_step import capture
from hvd_elastic_keras.step.partition.plan import Analysis
from hvd_elastic_keras.step.partition.planning.analysis import analysed
from hvd_elastic_keras.step.partition.rules.dimensions import LARGEST
from tests.harness.lockstep import assert_close, take_step

ROWS = 7
SHARES = ([7], [3, 4], [2, 0, 5])
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(ROWS, 3))
WORDS = tf.ragged.constant([[1, 2], [], [3], [4, 0, 2], [1], [2, 2], []], tf.int64)
TEXTS = tf.ragged.constant([[[1.0], [2.0, 3.0]], [], [[]], [[4.0]], [[5.0], []], [[6.0]], []])
VECTORS = tf.RaggedTensor.from_row_lengths(RANDOM.normal(size=(6, 2)), [1, 0, 2, 0, 0, 3, 0])
SPARSE = tf.sparse.from_dense(np.where(X > 0, X, 0.0))
TABLE = RANDOM.normal(size=(5, 3))
VIEWS = RANDOM.normal(size=(4 * ROWS, 3))


def spec_of(value: Any) -> Any:
    if isinstance(value, tf.SparseTensor):
        return tf.SparseTensorSpec([None, *value.shape[1:]], value.dtype)
    return batched(value)


def check(function: Callable[..., Any], batch: Any, whole: bool = False, **form: Any) -> Analysis:
    """All shares come to what the step comes to."""
    spec = form.pop("spec", None) or tf.nest.map_structure(spec_of, batch)
    step = capture(lambda data: tf.nest.flatten(function(*data)), spec, **form)
    analysis = analysed(step, ROWS, whole=whole)
    flat = [leaf for leaf in tf.nest.flatten(batch) if leaf is not None]
    expected = step.function(*flat, tf.constant(0, tf.int64))
    for shares in SHARES:
        found, _ = take_step(step, analysis, flat, shares)
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other, f"{shares}")
    return analysis


def sum_of_words(x: Any, words: Any) -> Any:
    """Embeds all words and adds those of a row; the gradient of the embeddings as well."""
    table = tf.constant(RANDOM.normal(size=(5, 3)))
    with tf.GradientTape() as tape:
        tape.watch(table)
        sums = tf.reduce_sum(tf.gather(table, words), axis=1)
        loss = tf.reduce_mean(tf.square(sums - x))
    return loss, tf.convert_to_tensor(tape.gradient(loss, table))


RAGGED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "words": (sum_of_words, (X, WORDS)),
    "words only": (lambda words: tf.reduce_mean(words.row_lengths()), (WORDS,)),
    "words filled up": (
        lambda x, words: x[:, :1] * tf.cast(words.to_tensor(), x.dtype),
        (X, WORDS),
    ),
    "texts of sentences": (lambda t: tf.reduce_sum(tf.reduce_sum(t, 2), 1), (TEXTS,)),
    "vectors": (lambda x, v: x[:, :2] + tf.reduce_sum(v, 1), (X, VECTORS)),
}


@pytest.mark.parametrize("name", RAGGED)
def test_ragged_tensors_are_gathered_before_all_else(name: str) -> None:
    analysis = check(*RAGGED[name])
    assert "since its tensor is ragged" in "\n".join(analysis.lines())


def test_what_follows_from_a_ragged_tensor_is_cut_into_rows_again() -> None:
    def function(x: Any, words: Any) -> Any:
        lengths = tf.cast(words.row_lengths(), x.dtype)[:, None]
        return tf.reduce_sum(tf.tanh(x * lengths))

    analysis = check(function, (X, WORDS))
    assert [c.what for c in analysis.collectives] == ["allgather", "allgather", "allreduce"]


def test_sparse_tensors_are_gathered_before_all_else() -> None:
    def function(x: Any, sparse: Any) -> Any:
        dense = tf.sparse.sparse_dense_matmul(sparse, tf.constant(TABLE[:3]))
        return tf.reduce_sum(dense * x, 0), tf.sparse.reduce_sum(sparse, 1)

    analysis = check(function, (X, SPARSE))
    assert "since its tensor is sparse" in "\n".join(analysis.lines())


def test_places_without_a_tensor_are_left_out() -> None:
    analysis = check(lambda x, none, y: tf.reduce_sum(x + y), (X, None, X[::-1].copy()))
    assert not analysis.gathered


def test_all_workers_have_scalars_and_what_has_a_size_of_its_own() -> None:
    spec = (
        batched(tf.constant(X)),
        tf.TensorSpec([], tf.float64),
        tf.TensorSpec([5, 3], tf.float64),
    )
    analysis = check(
        lambda x, rate, table: tf.reduce_sum(x * rate, 0) + tf.reduce_mean(table, 0),
        (X, np.float64(0.3), TABLE),
        spec=spec,
    )
    assert [c.what for c in analysis.collectives] == ["allreduce"]


def test_a_row_may_have_several_entries_in_one_of_the_tensors() -> None:
    """Sohn et al., "FixMatch", 2020: four unlabelled examples for each that has a label."""

    def function(x: Any, views: Any) -> Any:
        weights = tf.constant(TABLE[:3])
        labelled, unlabelled = tf.matmul(x, weights), tf.matmul(views, weights)
        return tf.reduce_mean(tf.square(labelled)) + tf.reduce_mean(tf.abs(unlabelled)), (
            tf.reshape(unlabelled, [tf.shape(x)[0], 4, 3]) - x[:, None]
        )

    analysis = check(function, (X, VIEWS), per_row=[1, 4])
    assert {c.what for c in analysis.collectives} == {"allreduce", "allgather"}
    assert not analysis.whole


@pytest.mark.parametrize("batch", [(X, X), (X, WORDS), (X, SPARSE)])
def test_everybody_can_compute_all_of_a_batch(batch: Any) -> None:
    def function(x: Any, other: Any) -> Any:
        dense = tf.reduce_sum(other, 1) if not isinstance(other, tf.SparseTensor) else x
        return tf.squeeze(x[:, :1]), tf.cast(dense, tf.float64)

    analysis = check(function, batch, whole=True)
    assert {c.level for c in analysis.collectives} == {1}
    assert {c.what for c in analysis.collectives} == {"allgather"}


def test_of_a_batch_of_one_row_everybody_computes_all() -> None:
    def function(x: Any) -> Any:
        return (
            tf.squeeze(x),
            x + tf.ones([3, 1], x.dtype),
            tf.random.stateless_uniform(tf.shape(x), [1, 2]),
        )

    step = capture(function, tf.TensorSpec([None, 3], tf.float64))
    row = X[:1]
    expected = step.function(tf.constant(row), tf.constant(0, tf.int64))
    for shares in ([1], [0, 1, 0]):
        found, _ = take_step(step, analysed(step, 1, whole=True), [row], shares)
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other, f"{shares}")


@pytest.mark.parametrize("num_rows", [5, 8209, 8210, 300_000])
def test_the_plan_holds_for_as_many_rows_as_there_are(num_rows: int) -> None:
    """At most 9,000 of them: up to there, these are all."""
    step = capture(
        lambda x: [tf.reduce_sum(x[: tf.minimum(tf.shape(x)[0], 9000)]), tf.reduce_mean(x)],
        tf.TensorSpec([None], tf.float64),
    )
    x = np.arange(num_rows, dtype="float64") % 17
    analysis = analysed(step, num_rows)
    assert analysis.most_rows is not None
    assert analysis.most_rows >= num_rows
    expected = step.function(tf.constant(x), tf.constant(0, tf.int64))
    found, _ = take_step(step, analysis, [x], [num_rows // 3, num_rows - num_rows // 3])
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, "the result")


def test_numbers_of_rows_that_are_tried_are_prime() -> None:
    for number in LARGEST:
        divisors = np.arange(2, int(number**0.5) + 1)
        assert np.all(number % divisors)


def test_more_rows_than_are_tried_are_refused() -> None:
    step = capture(lambda x: [x], tf.TensorSpec([None], tf.float64))
    with pytest.raises(ValueError, match="rows, expected 33554467 at most"):
        analysed(step, 2**26)
