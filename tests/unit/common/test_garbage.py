"""Garbage collections are rarer, or off, for a while, and what the program has set stays."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

import pytest

from hvd_elastic_keras.common import garbage


@pytest.fixture(autouse=True)
def _thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize(
    ("first", "meanwhile"), [(700, garbage.RARE), (0, 0), (1_000_000, 1_000_000)]
)
def test_a_program_finds_its_own_threshold_again(first: int, meanwhile: int) -> None:
    gc.set_threshold(first, 9, 8)
    undo = garbage.collect_rarely()
    assert gc.get_threshold() == (meanwhile, 9, 8)
    undo()
    assert gc.get_threshold() == (first, 9, 8)


def test_a_threshold_that_a_program_sets_meanwhile_stays() -> None:
    gc.set_threshold(700, 9, 8)
    undo = garbage.collect_rarely()
    gc.set_threshold(123, 4, 5)
    undo()
    assert gc.get_threshold() == (123, 4, 5)


@pytest.mark.parametrize("was_on", [True, False])
def test_collections_are_off_in_a_block_and_then_as_before(was_on: bool) -> None:
    (gc.enable if was_on else gc.disable)()
    try:
        with contextlib.suppress(KeyError), garbage.not_collected():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() == was_on
    finally:
        gc.enable()
