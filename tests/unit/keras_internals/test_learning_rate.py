"""The scale of the learning rate by step: grows over some steps, shrinks at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_keras.keras_internals.learning_rate import Growth, Ramp


@pytest.mark.parametrize(
    ("rule", "workers", "expected"),
    [
        ("linear", 1, 0.5),
        ("linear", 2, 1.0),
        ("linear", 8, 4.0),
        ("sqrt", 8, 2.0),
        ("sqrt", 2, 1.0),
        ("none", 8, 1.0),
    ],
)
def test_the_rate_belongs_to_the_reference_batch(rule: str, workers: int, expected: float) -> None:
    assert Growth(64, 32, rule, 100).scale(workers) == expected


def test_a_larger_scale_is_reached_within_the_steps_of_warm_up() -> None:
    ramp = Growth(32, 32, "linear", 4).ramp(Ramp(), 3, step=10)
    assert [ramp.at(step) for step in range(10, 17)] == [1.0, 1.5, 2.0, 2.5, 3.0, 3.0, 3.0]
    assert [ramp.steps_left(step) for step in (10, 12, 14, 20)] == [4, 2, 0, 0]


def test_a_smaller_scale_counts_at_once_also_in_the_middle_of_a_warm_up() -> None:
    growth = Growth(32, 32, "linear", 4)
    ramp = growth.ramp(Ramp(), 3, step=10)
    assert growth.ramp(ramp, 1, step=12).at(12) == 1.0
    assert growth.ramp(ramp, 2, step=12).at(12) == 2.0  # it has come to 2 just then
    assert growth.ramp(ramp, 2, step=11) == Ramp(1.5, 2.0, 11, 4)  # but not yet here


def test_a_round_of_the_same_size_goes_on_with_the_warm_up() -> None:
    growth = Growth(32, 32, "linear", 4)
    ramp = growth.ramp(Ramp(), 3, step=10)
    assert growth.ramp(ramp, 3, step=12) is ramp


def test_without_warm_up_every_scale_counts_at_once() -> None:
    ramp = Growth(32, 32, "linear", 0).ramp(Ramp(), 3, step=7)
    assert ramp.at(7) == 3.0
    assert ramp.steps_left(7) == 0


@given(
    sizes=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 30)), min_size=1, max_size=12),
    warm_up=st.integers(0, 20),
)
def test_the_scale_never_jumps_up_and_ends_where_it_should(
    sizes: list[tuple[int, int]], warm_up: int
) -> None:
    growth = Growth(8, 8, "linear", warm_up)
    ramp, step, last = Ramp(), 0, 1.0
    for workers, steps in sizes:
        ramp = growth.ramp(ramp, workers, step)
        for _ in range(steps):
            scale = ramp.at(step)
            largest_rise = 8 / warm_up if warm_up else 9
            assert scale <= max(last + largest_rise + 1e-9, 0)
            assert scale <= workers
            last, step = scale, step + 1
    assert ramp.at(step + warm_up) == workers
