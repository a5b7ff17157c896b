"""The time in which the master stood still counts for no worker."""

from __future__ import annotations

from hvd_elastic_keras.master.awake_clock import AwakeClock


def test_only_long_gaps_are_left_out() -> None:
    times, pauses = iter([100.0, 100.5, 102.5, 137.5, 138.0, 150.0, 150.25]), list[float]()
    clock = AwakeClock(pauses.append, lambda: next(times))
    first = clock()
    assert [clock() - first for _ in range(5)] == [2.0, 2.0, 2.5, 2.5, 2.75]
    assert pauses == [35.0, 12.0]
