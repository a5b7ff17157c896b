"""Examples that are prepared once and kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from hvd_elastic_keras.common.batch_plan import Share
from hvd_elastic_keras.common.errors import DataError
from hvd_elastic_keras.data.plan.partition import Partition
from hvd_elastic_keras.data.sources.cached import CachedSource
from hvd_elastic_keras.data.sources.source import as_source

SIZE = 12


class Texts:
    """Numbers as text; counts how often it is read."""

    def __init__(self) -> None:
        self.reads: list[int] = []

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        self.reads.append(index)
        return str(index).encode(), index


def decode(example: Any) -> Any:
    text, label = example
    return tf.strings.to_number(text, tf.float32)[None], label


def epoch_of(data: Any, epoch: int) -> dict[int, float]:
    source = as_source(data, seed=1, shuffle=True, name="the data")
    batches = source.batches(epoch, Partition(SIZE, 5, 5), Share(0, 1), 0)
    found: dict[int, float] = {}
    for _, (values, labels) in batches:
        found.update(zip(labels.numpy().tolist(), values.numpy()[:, 0].tolist(), strict=True))
    return found


def test_every_example_is_read_once_in_all_epochs() -> None:
    texts = Texts()
    cached = CachedSource(texts, decode)
    for epoch in range(3):
        assert epoch_of(cached, epoch) == {i: float(i) for i in range(SIZE)}
    assert sorted(texts.reads) == list(range(SIZE))


def test_what_does_not_fit_is_prepared_each_time() -> None:
    texts = Texts()
    size = 4 + 4  # a float and a label
    cached = CachedSource(texts, decode, max_bytes=5 * size)
    for epoch in range(3):
        assert epoch_of(cached, epoch) == {i: float(i) for i in range(SIZE)}
    counts = np.bincount(texts.reads, minlength=SIZE)
    assert np.sum(counts == 1) == 5
    assert np.sum(counts >= 3) == SIZE - 5


def test_a_function_beside_it_runs_in_every_epoch() -> None:
    cached = CachedSource(Texts(), decode)
    data = (cached, lambda example: (example[0] * 2, example[1]))
    assert epoch_of(data, 1)[3] == 6.0


def test_an_example_that_cannot_be_decoded_is_named() -> None:
    class Broken(Texts):
        def __getitem__(self, index: int) -> Any:
            return (b"?", 7) if index == 7 else super().__getitem__(index)

    with pytest.raises(DataError, match=r"Example 7 of the data cannot be read: Invalid.*Number"):
        epoch_of(CachedSource(Broken(), decode), 0)


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(DataError, match="max_bytes=-1 was given, expected 0 or more"):
        CachedSource(Texts(), max_bytes=-1)
