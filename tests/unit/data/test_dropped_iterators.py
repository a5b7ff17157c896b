"""Iterators that a loop gives up are deleted by a thread of their own."""

from __future__ import annotations

import contextlib
import threading

import tensorflow as tf

from hvd_elastic_keras.data.sources.iterators import deleted_in_background


class Part:
    """Something that an iterator holds, and that notes which thread deletes it."""

    def __init__(self) -> None:
        self.gone = threading.Event()
        self.deleted_by = ""

    def holder(self) -> object:
        part = self

        class Holder:
            def __del__(self) -> None:
                part.deleted_by = threading.current_thread().name
                part.gone.set()

        return Holder()


def read_three(dataset: tf.data.Dataset, part: Part) -> None:
    iterator = iter(dataset)
    iterator.part_of_a_test = part.holder()
    for number, _ in enumerate(iterator):
        if number == 2:
            raise InterruptedError("the membership is to change")


@tf.function
def total_in_a_graph(dataset: tf.data.Dataset) -> tf.Tensor:
    total = tf.constant(0, tf.int64)
    for batch in dataset:
        total += tf.reduce_sum(batch)
    return total


def test_an_iterator_that_an_interrupt_gives_up_is_deleted_by_another_thread() -> None:
    part = Part()
    dataset = tf.data.Dataset.range(100).shuffle(10).batch(2).prefetch(1)
    with deleted_in_background():
        with contextlib.suppress(InterruptedError):
            read_three(dataset, part)
        assert part.gone.wait(60)
    assert part.deleted_by == "elastic-drop-iterator"


def test_iterators_give_what_they_always_give_and_afterwards_all_is_as_before() -> None:
    before = tf.data.Dataset.__iter__
    dataset = tf.data.Dataset.from_generator(
        lambda: iter(range(4)), output_signature=tf.TensorSpec((), tf.int64)
    ).batch(2)
    with deleted_in_background():
        assert [batch.tolist() for batch in dataset.as_numpy_iterator()] == [[0, 1], [2, 3]]
        assert [batch.numpy().tolist() for batch in dataset] == [[0, 1], [2, 3]]
        assert (
            int(
                tf.function(
                    lambda: dataset.reduce(
                        tf.constant(0, tf.int64), lambda s, x: s + tf.reduce_sum(x)
                    )
                )()
            )
            == 6
        )
    assert tf.data.Dataset.__iter__ is before
