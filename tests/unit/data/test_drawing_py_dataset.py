"""A `PyDataset` that draws random numbers gives the same batches to all workers."""

from __future__ import annotations

import random
from typing import Any

import keras
import numpy as np
import pytest

from hvd_elastic_keras.data.sources.py_dataset_batches import PyDatasetBatches

SIZE = 5


class Noisy(keras.utils.PyDataset):  # type: ignore[misc]  # Keras is untyped
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.order = np.arange(SIZE)

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        noise = np.random.normal(size=(3, 2)) + random.random()
        return noise + self.order[index], noise[:, 0]

    def on_epoch_end(self) -> None:
        self.order = np.roll(self.order, 1)


class Steady(Noisy):
    def __getitem__(self, index: int) -> Any:
        return np.full((3, 2), self.order[index]), np.zeros(3)


def batches_of(kind: type[Noisy], **kwargs: Any) -> PyDatasetBatches:
    keras.utils.set_random_seed(2)
    return PyDatasetBatches(kind(**kwargs), lambda batch: batch, False, None, call_seed=4)


def numbers(source: PyDatasetBatches, number: int, position: int = 0) -> list[Any]:
    return [np.asarray(x) for x, _ in source.open(number, position)]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_newcomer_gets_the_batches_of_the_others(workers: int) -> None:
    first, late = batches_of(Noisy, workers=workers), batches_of(Noisy)
    assert first.draws
    passes = []
    for number in range(2):
        first.on_epoch_begin()
        passes.append(numbers(first, number))
        first.on_epoch_end()
    late.on_epoch_end()
    np.testing.assert_array_equal(numbers(late, 1, 2), passes[1][2:])
    assert first.first is not None
    np.testing.assert_array_equal(first.first[0], passes[0][0])
    assert not np.array_equal(passes[0][0], passes[0][1])
    assert not np.isin(passes[0], passes[1]).any()


def test_the_script_draws_what_it_would_draw_without_them() -> None:
    source = batches_of(Noisy)
    numbers(source, 0)
    found = np.random.rand(), random.random()
    keras.utils.set_random_seed(2)
    assert found == (np.random.rand(), random.random())


def test_a_dataset_that_draws_nothing_is_left_alone() -> None:
    assert not batches_of(Steady, workers=3).draws
