"""Random numbers: the same for any workers; what other workers cannot repeat is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.step.partition.captured_step import CapturedStep, capture
from hvd_elastic_keras.step.partition.planning.analysis import analysed
from hvd_elastic_keras.step.partition.planning.decide import NotPartitionedError
from tests.harness.lockstep import take_step

X = np.random.default_rng(0).normal(size=(9, 4)).astype("float32")
IMAGES = np.random.default_rng(1).uniform(size=(9, 6, 6, 3)).astype("float32")
SHARES = ([9], [4, 5], [2, 0, 7])


def captured(function: Callable[[Any], Any], batch: Any = X, seed: int = 0) -> CapturedStep:
    spec = tf.TensorSpec([None, *batch.shape[1:]], batch.dtype)
    return capture(lambda x: {"drawn": function(x)}, spec, seed=seed)


def drawn(step: CapturedStep, batch: Any, shares: list[int], number: int) -> Any:
    outputs, _ = take_step(step, analysed(step, len(batch)), [batch], shares, step_number=number)
    return step.results(outputs)["drawn"]


STATEFUL: dict[str, Callable[[Any], Any]] = {
    "uniform": lambda x: x + tf.random.uniform(tf.shape(x)),
    "uniform integers": lambda x: tf.random.uniform(tf.shape(x), 3, 99, tf.int32),
    "normal": lambda x: x + tf.random.normal(tf.shape(x), seed=4),
    "truncated normal": lambda x: x + tf.random.truncated_normal(tf.shape(x)),
    "dropout": lambda x: tf.nn.dropout(x, 0.5),
    "one number": lambda x: x * tf.random.uniform([]),
    "order": tf.random.shuffle,
    "categories": lambda x: tf.random.categorical(x, 3),
    "gamma": lambda x: tf.random.gamma([3], tf.exp(x)),
    "poisson": lambda x: tf.random.poisson([2], tf.exp(x)),
    "in branches": lambda x: tf.cond(
        tf.random.uniform([]) > 0.5,
        lambda: x + tf.random.normal(tf.shape(x)),
        lambda: x * tf.random.uniform(tf.shape(x)[:1])[:, None],
    ),
}
IMAGE_DRAWS: dict[str, Callable[[Any], Any]] = {
    "brightness": lambda x: tf.image.random_brightness(x, 0.3),
    "contrast": lambda x: tf.image.random_contrast(x, 0.5, 1.5),
    "flips": tf.image.random_flip_left_right,
    "crops": lambda x: tf.image.random_crop(x, tf.concat([tf.shape(x)[:1], [4, 4, 3]], 0)),
}


@pytest.mark.parametrize("name", [*STATEFUL, *IMAGE_DRAWS])
def test_draws_from_a_state_follow_from_the_step_for_any_workers(name: str) -> None:
    function, batch = (STATEFUL | IMAGE_DRAWS)[name], IMAGES if name in IMAGE_DRAWS else X
    step = captured(function, batch)
    for number in (0, 5):
        whole = step.function(tf.constant(batch), tf.constant(number, tf.int64))["drawn"]
        for shares in SHARES:
            found = drawn(step, batch, shares, number)
            np.testing.assert_allclose(found, whole, rtol=1e-5, atol=1e-6)


def test_draws_from_a_state_differ_from_step_to_step_and_from_seed_to_seed() -> None:
    steps = [captured(STATEFUL["normal"], seed=seed) for seed in (0, 1)]
    found = [drawn(step, X, [9], number) for step in steps for number in (0, 1)]
    for i, one in enumerate(found):
        assert not any(np.array_equal(one, other) for other in found[i + 1 :])


def test_two_draws_of_a_step_differ() -> None:
    def function(x: Any) -> Any:
        return tf.random.normal(tf.shape(x)) - tf.random.normal(tf.shape(x))

    assert np.all(drawn(captured(function), X, [9], 0) != 0)


ITERATOR = iter(tf.data.Dataset.range(9).map(lambda n: tf.cast(n, tf.float32)).repeat())
GENERATOR = tf.random.Generator.from_seed(1)
REFUSED: dict[str, Callable[[Any], Any]] = {
    "RandomStandardNormal": lambda x: (
        x + tf.raw_ops.RandomStandardNormal(shape=tf.shape(x), dtype=tf.float32)
    ),
    "RngReadAndSkip": lambda x: x + GENERATOR.normal(tf.shape(x)),
    "UniformCandidateSampler": lambda x: (
        tf.random.uniform_candidate_sampler(
            tf.ones([1, 1], tf.int64), 1, 3, True, 9
        ).sampled_candidates
    ),
    "FractionalMaxPool": lambda x: tf.nn.fractional_max_pool(x[:, :, None, None], 1.5)[0],
}


@pytest.mark.parametrize("kind", REFUSED)
def test_other_draws_from_a_state_are_refused(kind: str) -> None:
    step = captured(REFUSED[kind])
    with pytest.raises(ConfigurationError, match=rf"draws random numbers .*{kind}"):
        analysed(step, 9)


@pytest.mark.parametrize("loop", [tf.map_fn, tf.vectorized_map])
def test_draws_from_a_state_in_a_loop_are_refused(loop: Any) -> None:
    with pytest.raises(ConfigurationError, match="inside a loop"):
        captured(lambda x: loop(lambda row: row * tf.random.uniform([]), x))


def test_a_draw_within_an_operation_without_a_rule_is_refused() -> None:
    def function(x: Any) -> Any:
        return tf.switch_case(
            tf.shape(x)[0] % 2, [lambda: x, lambda: REFUSED["RandomStandardNormal"](x)]
        )

    with pytest.raises(ConfigurationError, match="draws random numbers"):
        analysed(captured(function), 9)


@pytest.mark.parametrize(
    ("kind", "function"),
    [
        ("Timestamp", lambda x: x + tf.cast(tf.timestamp(), tf.float32)),
        ("IteratorGetNext", lambda x: x + next(ITERATOR)),
    ],
)
def test_what_follows_from_a_state_of_the_process_is_refused(
    kind: str, function: Callable[[Any], Any]
) -> None:
    with pytest.raises(NotPartitionedError, match=f"^{kind} .* state of its process"):
        analysed(captured(function), 9)


def test_the_plan_says_that_python_code_has_to_do_the_same_on_all_workers() -> None:
    step = captured(lambda x: tf.py_function(lambda v: v * 2.0, [x], tf.float32))
    assert "Python code, which has to do the same" in "\n".join(analysed(step, 9).lines())
