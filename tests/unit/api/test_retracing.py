"""People are told when a graph of theirs was traced while all workers waited."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.api.elastic_loop.retracing import TracedAnew


class Clock:
    """Seconds that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@tf.function
def exact_step(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(x)


@tf.function(input_signature=[tf.TensorSpec([None])])
def relaxed_step(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(x)


def one_batch(size: int) -> None:
    exact_step(tf.ones([size]))


def told(train: Callable[[], Any], took_s: float) -> str:
    """What the first commit of a round tells in which `train` takes so long."""
    clock = Clock()
    watch = TracedAnew(train, clock)
    watch.begin_round()
    train()
    clock.now = took_s
    return watch.first_commit()


def test_a_function_that_was_traced_anew_for_another_share_is_named_with_the_remedy() -> None:
    one_batch(11)
    text = told(lambda: one_batch(12), 3.04)
    assert text.startswith("exact_step was traced anew while all workers waited")
    assert "after 3.0 s" in text
    assert "input_signature" in text
    assert told(lambda: one_batch(12), 3.0) == ""


def test_a_function_that_was_never_traced_before_the_round_is_told_apart() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.step = tf.function(lambda x: x + 1)

    trainer = Trainer()
    text = told(lambda: trainer.step(tf.ones([2])), 1.0)
    assert text.startswith("trainer.step was traced for the first time")
    assert "state.restore()" in text


def test_what_costs_little_is_not_worth_a_line() -> None:
    assert told(lambda: one_batch(21), 0.1) == ""


def test_one_graph_for_all_sizes_is_not_worth_a_line() -> None:
    relaxed_step(tf.ones([3]))
    assert told(lambda: [relaxed_step(tf.ones([n])) for n in (4, 5)], 9.0) == ""


def test_only_the_first_commit_of_a_round_is_looked_at() -> None:
    watch = TracedAnew(lambda: one_batch(31), clock := Clock())
    assert watch.first_commit() == ""
    watch.begin_round()
    assert watch.first_commit() == ""
    clock.now = 9.0
    one_batch(31)
    assert watch.first_commit() == ""


def test_what_is_no_python_function_is_left_alone() -> None:
    assert told(print, 9.0) == ""
