"""The order of an epoch is a permutation, the same wherever a part of it is computed."""

from __future__ import annotations

import itertools
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_elastic_keras.data.plan.order import Order


def indices(order: Order, first: int = 0, last: int | None = None) -> npt.NDArray[np.int64]:
    last = order.num_examples if last is None else last
    return np.asarray(order.indices(tf.range(first, last, dtype=tf.int64)))


ORDERS = st.builds(
    Order,
    num_examples=st.integers(1, 300),
    seed=st.integers(0, 2**31 - 1),
    epoch=st.integers(0, 1000),
    shuffle=st.booleans(),
    block_size=st.integers(0, 320),
    window_blocks=st.integers(1, 20),
)


@settings(max_examples=150)
@given(order=ORDERS)
def test_every_example_has_one_position(order: Order) -> None:
    assert sorted(indices(order)) == list(range(order.num_examples))


@settings(max_examples=50)
@given(order=ORDERS, data=st.data())
def test_a_part_is_the_same_as_in_the_whole(order: Order, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, order.num_examples))
    last = data.draw(st.integers(first, order.num_examples))
    np.testing.assert_array_equal(indices(order, first, last), indices(order)[first:last])


@settings(max_examples=50)
@given(order=ORDERS)
def test_a_window_holds_no_more_than_its_blocks(order: Order) -> None:
    if not (order.shuffle and order.block_size):
        return
    size = order.block_size * order.window_blocks
    found = indices(order)
    for start in range(0, order.num_examples, size):
        blocks = set(found[start : start + size] // order.block_size)
        # The shorter block shifts the others, so that a window may hold parts of two more.
        assert len(blocks) <= order.window_blocks + 2


def test_without_shuffling_it_is_that_of_the_storage() -> None:
    np.testing.assert_array_equal(indices(Order(7, 1, 2, shuffle=False)), np.arange(7))


@pytest.mark.parametrize("block_size", [0, 10])
def test_seeds_and_epochs_have_other_orders(block_size: int) -> None:
    found = [
        tuple(indices(Order(100, seed, epoch, block_size=block_size)))
        for seed, epoch in itertools.product(range(3), range(3))
    ]
    assert len(set(found)) == 9


def test_the_shorter_block_is_not_always_in_the_same_place() -> None:
    places = set()
    for epoch in range(20):
        order = Order(95, 0, epoch, block_size=10, window_blocks=1)
        places.add(int(np.flatnonzero(indices(order) >= 90)[0]) // 10)
    assert len(places) > 4


@pytest.mark.parametrize("block_size", [0, 1000])
def test_a_part_of_a_huge_order_needs_no_memory(block_size: int) -> None:
    order = Order(10**12, seed=3, epoch=5, block_size=block_size)
    found = indices(order, 10**11, 10**11 + 64)
    assert len(set(found)) == 64
    assert found.min() >= 0
    assert found.max() < 10**12
