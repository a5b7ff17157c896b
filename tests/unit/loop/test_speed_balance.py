"""Shares that follow speed, as pure numbers."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_keras.common.batch_plan import Share, shares_of
from hvd_elastic_keras.loop.shares import (
    WINDOW_S,
    WINDOW_STEPS,
    WINDOWS,
    Balance,
    apportion,
    known_slowness,
)

FIRST = WINDOWS * WINDOW_STEPS
"""Steps before a first change, if steps are long."""
SECOND = FIRST + WINDOW_STEPS


def measure(balance: Balance, *seconds: float, steps: int = FIRST) -> bool:
    """Takes steps of 100 examples until shares change; returns whether they did."""
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
    """Speeds are drawn anew every 60 steps.

    With one window alone, shares changed 42 times in 6000 steps.
    """
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


class Paused:
    """A worker that runs only for `run_s` of every `period_s`, as under a quota."""

    def __init__(self, run_s: float, period_s: float) -> None:
        self._run_s, self._period_s = run_s, period_s

    def end(self, begin_s: float, work_s: float) -> float:
        """Returns the time at which this much work is done that begins at `begin_s`."""
        periods, into = divmod(begin_s, self._period_s)
        work_s += periods * self._run_s + min(into, self._run_s)
        return work_s + (self._period_s - self._run_s) * (work_s // self._run_s)


def paused_steps(
    balance: Balance, worker: Paused, example_s: float, other_s: float, wall_s: float
) -> None:
    """Trains with one worker that always runs, and one that is paused; 64 examples in a step.

    `other_s` is about the time that each worker spends besides its part. It is not measured.
    """
    micro_batches, examples = sum(balance.shares), 64
    draw = random.Random(3)
    now = 0.0
    while now < wall_s:
        counts = [examples * share // micro_batches for share in balance.shares]
        begin_s = [now + other_s, worker.end(now, other_s * draw.uniform(0.5, 1.5))]
        end_s = [
            begin_s[0] + counts[0] * example_s,
            worker.end(begin_s[1], counts[1] * example_s),
        ]
        seconds = [(e - b) / n for b, e, n in zip(begin_s, end_s, counts, strict=True)]
        balance.after_step(seconds, examples)
        now = max(end_s)


@pytest.mark.parametrize(("step_s", "other_s"), [(0.002, 0.001), (0.007, 0.003), (0.05, 0.001)])
def test_a_worker_that_is_paused_most_of_the_time_is_followed(
    step_s: float, other_s: float
) -> None:
    """Four of five steps of 2 ms see no pause. With medians of steps, shares stayed even."""
    balance = Balance(2, 16)
    paused_steps(balance, Paused(0.01, 0.04), step_s / 64, other_s, wall_s=5 * WINDOW_S)
    assert balance.shares[1] <= 5
    assert 3 <= balance.slowness[1] <= 5


def test_pauses_that_all_workers_have_alike_change_nothing() -> None:
    worker = Paused(0.01, 0.04)
    balance, now = Balance(2, 8), 0.0
    while now < 10 * WINDOW_S:
        ends = [worker.end(now, 0.0031), worker.end(now + 0.017, 0.0029) - 0.017]
        assert not balance.after_step([(end - now) / 32 for end in ends], 64)
        now = max(ends) + 0.0013


def test_a_hiccup_of_a_second_and_more_in_short_steps_changes_nothing() -> None:
    balance = Balance(2, 8)
    for _ in range(6):
        assert not measure(balance, 0.0003, 0.0003, steps=100)
        assert not measure(balance, 0.0003, 0.03, steps=1)  # 1.5 s in one step


def test_in_a_new_round_those_who_stay_are_as_fast_as_they_were() -> None:
    slowness = {"w0": 1.0, "w1": 3.0, "w2": 1.0}
    assert Balance(2, 8, known_slowness(slowness, ["w0", "w1"])).shares == [6, 2]
    joined = Balance(3, 8, known_slowness(slowness, ["w0", "w1", "w3"]))
    assert (joined.shares, joined.is_even) == ([4, 1, 3], False)
    assert Balance(2, 8, known_slowness(slowness, ["w3", "w4"])).is_even
    assert Balance(2, 8, known_slowness({}, ["w0", "w1"])).shares == [4, 4]


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


def test_an_idle_worker_has_an_empty_share_in_its_place() -> None:
    balance = Balance(3, 8, [1.0, 3.0, 1.0], idle=[1])
    assert balance.shares == [4, 0, 4]
    assert [balance.share(rank, 3) for rank in range(3)] == [Share(0, 2), Share(2, 2), Share(2, 3)]
