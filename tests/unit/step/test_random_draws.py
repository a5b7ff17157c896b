"""Random numbers of a micro-batch are rows of those of the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from hvd_elastic_keras.step.micro_batches.random_draws import RandomDraws, unknown_draws
from hvd_elastic_keras.step.micro_batches.rows import Rows

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.step.partition.graph_nodes import nodes_of

TOTAL, WIDTH = 11, 3
SEED = [1, 2]
CUTS = [(0, 4), (4, 5), (9, 2)]
"""First example and number of examples of three micro-batches."""
STATELESS: dict[str, Callable[[Any, Any], Any]] = {
    "uniform": lambda n, x: tf.random.stateless_uniform([n, WIDTH], SEED),
    "one per example": lambda n, x: tf.random.stateless_uniform([n], SEED),
    "float64": lambda n, x: tf.random.stateless_uniform([n, WIDTH], SEED, dtype=tf.float64),
    "bfloat16": lambda n, x: tf.random.stateless_uniform([n, WIDTH], SEED, dtype=tf.bfloat16),
    "normal": lambda n, x: tf.random.stateless_normal([n, WIDTH], SEED),
    "whole": lambda n, x: tf.random.stateless_uniform([n, WIDTH], SEED, 0, 99, tf.int32),
    "int64": lambda n, x: tf.random.stateless_uniform([n, WIDTH], SEED, 0, 99, tf.int64),
    "truncated": lambda n, x: tf.random.stateless_truncated_normal([n, WIDTH], SEED),
    "second axis": lambda n, x: tf.transpose(tf.random.stateless_normal([WIDTH, n], SEED)),
    "steps and examples": lambda n, x: tf.reshape(
        tf.random.stateless_normal([n * 5, WIDTH], SEED), [n, 5 * WIDTH]
    ),
    "classes": lambda n, x: tf.random.stateless_categorical(x, 2, SEED),
    "gamma": lambda n, x: tf.random.stateless_gamma([n, WIDTH], SEED, tf.exp(x)),
    "gamma of one": lambda n, x: tf.random.stateless_gamma([n, WIDTH], SEED, 0.5),
    "binomial": lambda n, x: tf.random.stateless_binomial([n, WIDTH], SEED, 9.0, tf.sigmoid(x)),
    "poisson": lambda n, x: tf.random.stateless_poisson([n, WIDTH], SEED, tf.exp(x)),
    "dropout": lambda n, x: tf.nn.experimental.stateless_dropout(x, 0.5, SEED),
}
STATEFUL: dict[str, Callable[[Any, Any], Any]] = {
    "uniform": lambda n, x: tf.random.uniform([n, WIDTH]),
    "whole": lambda n, x: tf.random.uniform([n, WIDTH], 0, 9, tf.int32),
    "normal": lambda n, x: tf.random.normal([n, WIDTH], seed=3),
    "truncated": lambda n, x: tf.random.truncated_normal([n, WIDTH]),
    "classes": lambda n, x: tf.random.categorical(x, 2),
    "gamma": lambda n, x: tf.random.gamma([], tf.exp(x)),
    "poisson": lambda n, x: tf.random.poisson([], tf.exp(x)),
    "dropout": lambda n, x: tf.nn.dropout(x, 0.5),
}
X = np.random.default_rng(0).normal(size=(TOTAL, WIDTH)).astype("float32")


def drawn(draw: Callable[[Any, Any], Any], low: int, size: int, step: int = 0) -> Any:
    """What a micro-batch draws, in a graph for batches of any size."""

    @tf.function(
        autograph=False,
        input_signature=[tf.TensorSpec([None, WIDTH]), tf.TensorSpec([5], tf.int64)],
    )
    def micro_batch(x: Any, numbers: Any) -> Any:
        with RandomDraws(Rows(*tf.unstack(numbers)), seed=5).replaced():
            return draw(tf.shape(x)[0], x)

    assert not unknown_draws(nodes_of(micro_batch.get_concrete_function().graph))
    index = int(low > 0)
    return micro_batch(X[low : low + size], [step, index, low, size, TOTAL]).numpy()


def assert_same(found: Any, expected: Any) -> None:
    # Not to the bit: the parameters of some are computed in other shapes.
    np.testing.assert_allclose(
        found.astype("float64"), expected.astype("float64"), rtol=1e-6, atol=1e-7
    )


@pytest.mark.parametrize("name", STATELESS)
def test_parts_draw_the_rows_that_plain_keras_draws(name: str) -> None:
    draw = STATELESS[name]
    plain = draw(TOTAL, tf.constant(X)).numpy()
    assert_same(np.concatenate([drawn(draw, *cut) for cut in CUTS]), plain)


@pytest.mark.parametrize("name", STATEFUL)
def test_stateful_draws_depend_on_the_step_and_not_on_the_cut(name: str) -> None:
    draw = STATEFUL[name]
    whole = drawn(draw, 0, TOTAL)
    assert_same(np.concatenate([drawn(draw, *cut) for cut in CUTS]), whole)
    assert not np.array_equal(whole, drawn(draw, 0, TOTAL, step=1))


def test_two_stateful_draws_of_a_step_differ() -> None:
    both = drawn(lambda n, x: tf.concat([tf.random.normal([n, WIDTH])] * 1, 0), 0, TOTAL)
    pair = drawn(
        lambda n, x: tf.concat([tf.random.normal([n, WIDTH]), tf.random.normal([n, WIDTH])], 1),
        0,
        TOTAL,
    )
    np.testing.assert_array_equal(pair[:, :WIDTH], both)
    assert not np.array_equal(pair[:, :WIDTH], pair[:, WIDTH:])


def test_what_does_not_depend_on_the_examples_is_the_same_in_all_parts() -> None:
    def brightness(n: Any, x: Any) -> Any:
        return x * 0 + tf.random.stateless_uniform([WIDTH], SEED)

    plain = brightness(TOTAL, tf.constant(X)).numpy()
    np.testing.assert_array_equal(np.concatenate([drawn(brightness, *c) for c in CUTS]), plain)


def test_rows_that_do_not_belong_to_examples_differ_from_part_to_part() -> None:
    def odd(n: Any, x: Any) -> Any:
        return tf.random.stateless_uniform([n + 1], SEED)

    first, second = (drawn(odd, low, 4) for low in (0, 4))
    assert not set(first) & set(second)


def test_a_draw_in_a_loop_is_refused() -> None:
    def loop(n: Any, x: Any) -> Any:
        return tf.map_fn(lambda row: row + tf.random.normal([WIDTH]), x)

    with pytest.raises(ConfigurationError, match="inside a loop"):
        drawn(loop, 0, TOTAL)


def test_generators_and_functions_traced_before_are_found() -> None:
    generator = tf.random.Generator.from_seed(1)
    earlier = tf.function(lambda: tf.random.normal([2]))
    earlier()

    @tf.function
    def step() -> Any:
        numbers = [tf.constant(n, tf.int64) for n in (0, 0, 0, TOTAL, TOTAL)]
        with RandomDraws(Rows(*numbers), seed=5).replaced():
            return generator.normal([2]), earlier()

    found = unknown_draws(nodes_of(step.get_concrete_function().graph))
    assert {"RngReadAndSkip", "RandomStandardNormal"} <= set(found.values())
