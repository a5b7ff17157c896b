"""A Python generator goes on: every worker takes as many batches of it as plain Keras does."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from hvd_elastic_keras.common.errors import DataError, ElasticError
from hvd_elastic_keras.data.plan.fit_passes import Passes
from hvd_elastic_keras.data.sources.generator_batches import GeneratorBatches
from hvd_elastic_keras.keras_internals.fit_call import GeneratorDataAdapter, generator_of

Numbers = list[int]


class Generator:
    """Batches of one number each, which counts how many have been taken."""

    def __init__(self, length: int | None = None) -> None:
        self.taken = 0
        self._length = length

    def batches(self) -> Iterator[Any]:
        """As a user writes it."""
        for number in itertools.count() if self._length is None else range(self._length):
            self.taken = number + 1
            yield (np.full((2, 1), number, "float32"),)


def source_of(batches: Iterator[Any], passes: Passes) -> GeneratorBatches:
    parts = generator_of(GeneratorDataAdapter(batches))
    return GeneratorBatches(parts.first, parts.rest, parts.spec, "x", passes)


def read(source: GeneratorBatches, number: int, most: int | None = None) -> Numbers:
    """The numbers of so many batches of a pass."""
    return [int(x[0, 0]) for (x,) in itertools.islice(source.open(number, 0), most)]


@pytest.mark.parametrize(
    ("steps", "length", "expected"),
    [
        # As counted in Keras 3.15 with a generator that is slower than the steps.
        (3, None, [[0, 1, 2], [0, 1, 4], [0, 1, 6], [0, 1, 8]]),
        (1, None, [[0], [0], [0]]),
        (2, None, [[0, 1], [0, 1], [0, 1]]),
        (5, None, [[0, 1, 2, 3, 4], [0, 1, 6, 7, 8]]),
        (3, 6, [[0, 1, 2], [0, 1, 4], [0, 1]]),
        (None, 4, [[0, 1, 2, 3], [0, 1], [0, 1]]),
    ],
)
def test_evaluations_begin_with_the_batches_keras_has_looked_at_and_lose_the_one_read_ahead(
    steps: int | None, length: int | None, expected: list[Numbers]
) -> None:
    passes = Passes(steps, goes_on=False)
    members = source_of(Generator(length).batches(), passes)
    assert [read(members, number, steps) for number in range(len(expected))] == expected
    for number, numbers in enumerate(expected):  # who comes later reads up to there
        assert read(source_of(Generator(length).batches(), passes), number, steps) == numbers


def test_a_training_takes_one_batch_more_than_its_steps_also_on_a_worker_that_was_not_there() -> (
    None
):
    trained, skipped = Generator(), Generator()
    member = source_of(trained.batches(), Passes(4))
    assert read(member, 0, 8) == [*range(8)]
    newcomer = source_of(skipped.batches(), Passes(4))
    for source in (member, newcomer):
        source.finish(2, stopped=False)
    assert trained.taken == skipped.taken == 9


def test_evaluations_leave_the_generator_alike_on_all_workers() -> None:
    read_by, skipped = Generator(), Generator()
    passes = Passes(3, goes_on=False)
    member, newcomer = source_of(read_by.batches(), passes), source_of(skipped.batches(), passes)
    for number in range(2):
        read(member, number, 3)
    for source in (member, newcomer):
        source.finish(2, stopped=False)
    assert read_by.taken == skipped.taken == 6


def test_a_pass_that_is_over_takes_a_new_process() -> None:
    source = source_of(Generator().batches(), Passes(3, goes_on=False))
    read(source, 2, 3)
    with pytest.raises(ElasticError, match="Pass 1 of x has to be read again after later") as found:
        source.open(1, 0)
    assert not isinstance(found.value, DataError)  # which would end the job


def test_batches_have_the_types_of_the_first_ones_and_may_lack_targets() -> None:
    def batches() -> Iterator[Any]:
        yield np.zeros((2, 3), "float32"), None
        yield np.zeros((1, 3), "float32"), None
        yield np.array([[1, 2, 3]]), None

    source = source_of(batches(), Passes())
    last = list(source.open(0, 0))[-1]
    assert last[0].dtype == tf.float32
    assert last[1] is None
    assert source.batch_spec[0].shape.as_list() == [None, 3]


@pytest.mark.parametrize("wrong", [(np.zeros((2, 4)), None), (np.zeros((2, 3)),)])
def test_a_batch_of_another_form_is_refused(wrong: Any) -> None:
    def batches() -> Iterator[Any]:
        yield from [(np.zeros((2, 3)), None)] * 2
        yield wrong

    with pytest.raises(DataError, match="A batch of x is not of the form of the first ones"):
        list(source_of(batches(), Passes()).open(0, 0))


def test_an_error_of_the_generator_is_that_of_the_step_that_needs_the_batch() -> None:
    def batches() -> Iterator[Any]:
        yield from Generator(3).batches()
        raise KeyError("broken")

    source = source_of(batches(), Passes(3, goes_on=False))
    assert read(source, 0, 3) == [0, 1, 2]
    source.finish(1, stopped=False)  # nobody uses what comes then
    source = source_of(batches(), Passes())
    with pytest.raises(KeyError, match="broken"):
        read(source, 0)
