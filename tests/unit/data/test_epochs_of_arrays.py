"""Epochs of arrays follow one another in one pipeline, and give what each would by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

tf = pytest.importorskip("tensorflow")

from hvd_elastic_keras.common.batch_plan import Share
from hvd_elastic_keras.data.plan.order import Order
from hvd_elastic_keras.data.plan.partition import Partition
from hvd_elastic_keras.data.sources.source import as_source

SIZE, BATCH, MICRO, SEED = 23, 6, 2, 5
PARTITION = Partition(SIZE, BATCH, MICRO)
SHARES = [Share(0, 3), Share(0, 1), Share(1, 3)]
Batch = tuple[Any, Any]


def numbers() -> Any:
    return as_source((np.arange(SIZE), np.arange(SIZE)), seed=SEED, shuffle=True, name="x")


def check(batch: Batch, epoch: int, step: int, share: Share) -> None:
    """Compares with the order of that epoch alone."""
    low = min(step * BATCH + share.first * MICRO, SIZE)
    high = min(step * BATCH + min(share.last * MICRO, BATCH), SIZE)
    order = Order(SIZE, SEED, epoch).indices(tf.range(low, high)).numpy().tolist()
    ids, (x, y) = batch
    assert ids.numpy().tolist() == x.numpy().tolist() == y.numpy().tolist() == order


@pytest.fixture
def pipelines(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The `tf.data` pipelines that are begun."""
    begun: list[Any] = []
    begin = tf.data.Dataset.__iter__
    monkeypatch.setattr(
        tf.data.Dataset, "__iter__", lambda dataset: begun.append(dataset) or begin(dataset)
    )
    return begun


def test_only_the_first_epoch_begins_a_pipeline(pipelines: list[Any]) -> None:
    source = numbers()
    for epoch in range(3):
        batches = list(source.batches(epoch, PARTITION, SHARES[0], 0))
        assert len(batches) == 4
        for step, batch in enumerate(batches):
            check(batch, epoch, step, SHARES[0])
    assert len(pipelines) == 1


def test_another_share_or_an_earlier_step_begins_one(pipelines: list[Any]) -> None:
    source = numbers()
    for first, share in [(0, SHARES[0]), (2, SHARES[1]), (1, SHARES[1])]:
        check(next(source.batches(0, PARTITION, share, first)), 0, first, share)
    assert len(pipelines) == 3


@settings(deadline=None, max_examples=30)
@given(
    asked=st.lists(
        st.tuples(
            st.integers(0, 3), st.integers(0, 3), st.sampled_from(SHARES), st.sampled_from([1, 2])
        ),
        min_size=1,
        max_size=4,
    ),
    turns=st.lists(st.integers(0, 3), max_size=14),
)
def test_readers_of_one_source_do_not_disturb_each_other(
    asked: list[tuple[int, int, Share, int]], turns: list[int]
) -> None:
    """As an epoch that is given up, or is begun again at an earlier step, would."""
    source = numbers()
    readers: list[tuple[Iterator[Batch], Iterator[int]]] = [
        (source.batches(epoch, PARTITION, share, first, every), iter(range(first, 4, every)))
        for epoch, first, share, every in asked
    ]
    for turn in turns:
        batches, steps = readers[turn % len(readers)]
        epoch, _, share, _ = asked[turn % len(readers)]
        step = next(steps, None)
        batch = next(batches, None)
        assert (batch is None) == (step is None)
        if batch is not None and step is not None:
            check(batch, epoch, step, share)
