"""Shares that follow speed: pure numbers."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_keras.batch_plan import shares_of
from hvd_elastic_keras.training.balance import (
    WINDOW_S,
    WINDOW_STEPS,
    WINDOWS,
    Balance,
    apportion,
)

FIRST = WINDOWS * WINDOW_STEPS
"""Steps before a first change, if they are long."""
SECOND = FIRST + WINDOW_STEPS


def measure(balance: Balance, *seconds: float, steps: int = FIRST) -> bool:
    """Takes steps of 100 examples until shares change."""
    return any(balance.after_step(seconds, 100) for _ in range(steps))


def test_shares_are_even_until_two_windows_of_steps_are_measured() -> None:
    balance = Balance(2, 8)
    assert not measure(balance, 1.0, 3.0, steps=FIRST - 1)
    assert balance.shares == [4, 4]
    assert measure(balance, 1.0, 3.0, steps=1)
    assert balance.shares == [6, 2]
    assert balance.slowness == [1.0, 3.0]


def test_short_steps_are_measured_for_seconds() -> None:
    balance = Balance(2, 8)
    needed = WINDOWS * WINDOW_S / 0.03
    assert not measure(balance, 0.0002, 0.0006, steps=int(0.9 * needed))
    assert measure(balance, 0.0002, 0.0006, steps=int(0.2 * needed))


@pytest.mark.parametrize("seconds", [(1.0, 1.0, 1.0), (1.0, 1.2, 0.9), (2.0, 2.1, 1.9)])
def test_small_differences_change_nothing(seconds: tuple[float, ...]) -> None:
    balance = Balance(3, 12)
    assert not measure(balance, *seconds, steps=5 * WINDOW_STEPS)
    assert balance.shares == [4, 4, 4]


def test_a_hiccup_changes_nothing() -> None:
    balance = Balance(2, 8)
    assert not measure(balance, 1.0, 100.0, steps=WINDOW_STEPS // 2 - 1)
    assert not measure(balance, 1.0, 1.0, steps=WINDOW_STEPS // 2 + 1)


def test_a_worker_that_is_fast_again_gets_its_share_back() -> None:
    balance = Balance(2, 8)
    measure(balance, 1.0, 7.0)
    assert balance.shares == [7, 1]
    assert not measure(balance, 1.0, 1.0, steps=SECOND - 1)
    assert measure(balance, 1.0, 1.0, steps=1)
    assert balance.shares == [4, 4]


def test_one_window_in_which_a_worker_was_slower_changes_nothing() -> None:
    balance = Balance(2, 8)
    for _ in range(10):
        assert not measure(balance, 1.0, 3.0, steps=WINDOW_STEPS)
        assert not measure(balance, 1.0, 1.0, steps=WINDOW_STEPS)


def test_two_windows_that_disagree_who_is_slower_change_nothing() -> None:
    balance = Balance(2, 8)
    for _ in range(10):
        assert not measure(balance, 1.0, 3.0, steps=WINDOW_STEPS)
        assert not measure(balance, 3.0, 1.0, steps=WINDOW_STEPS)


@pytest.mark.parametrize(("step_s", "most_changes"), [(0.02, 3), (0.05, 4), (0.1, 6), (0.3, 12)])
def test_equal_workers_whose_speed_varies_are_not_followed_for_long(
    step_s: float, most_changes: int
) -> None:
    """Drawn anew every 60 steps; by one window alone shares changed 42 times in 6000 steps."""
    draw = random.Random(1)
    balance = Balance(3, 15)
    changes = 0
    for step in range(6000):
        if step % 60 == 0:
            speeds = [step_s / 5 * 15 / 128 * draw.uniform(0.8, 1.2) for _ in range(3)]
        changes += balance.after_step(speeds, 128)
    assert changes <= most_changes


def test_a_slow_worker_is_followed_through_noise() -> None:
    draw = random.Random(2)
    balance = Balance(2, 16)
    for _ in range(FIRST):
        balance.after_step([draw.uniform(0.8, 1.2), draw.uniform(1.6, 2.4)], 100)
    assert balance.shares in ([10, 6], [11, 5])


def test_a_step_in_which_somebody_had_nothing_to_do_does_not_count() -> None:
    balance = Balance(2, 8)
    assert not measure(balance, 1.0, 0.0, steps=3 * FIRST)
    assert not measure(balance, 1.0, 7.0, steps=FIRST - 1)
    assert measure(balance, 1.0, 7.0, steps=1)


def test_the_ranges_of_an_evaluation_follow_the_same_speeds() -> None:
    balance = Balance(2, 8)
    measure(balance, 1.0, 3.0)
    ranges = [balance.share(rank, 4) for rank in range(2)]
    assert [(r.first, r.last) for r in ranges] == [(0, 3), (3, 4)]


weights = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=5)


@given(weights, st.integers(0, 30))
def test_every_micro_batch_is_somebodys_and_everybody_has_one(values: list[float], n: int) -> None:
    shares = apportion(values, n)
    assert sum(shares) == n
    if n >= len(values):
        assert min(shares) >= 1


@given(st.integers(1, 12), st.integers(0, 40))
def test_equal_speeds_give_even_shares(size: int, n: int) -> None:
    assert apportion([0.37] * size, n) == shares_of(size, n)


@given(st.lists(st.floats(0.1, 10.0), min_size=2, max_size=3), st.integers(3, 9))
def test_no_other_shares_end_sooner(values: list[float], n: int) -> None:
    def time(shares: tuple[int, ...]) -> float:
        return max(w * s for w, s in zip(values, shares, strict=True))

    others = itertools.product(range(1, n + 1), repeat=len(values))
    best = min(time(shares) for shares in others if sum(shares) == n)
    assert time(tuple(apportion(values, n))) <= best * (1 + 1e-12)
