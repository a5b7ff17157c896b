"""How a worker was lost: the consequences, and how it is told."""

from __future__ import annotations

import pytest

from hvd_elastic_keras.launchers.base import WorkerExit
from hvd_elastic_keras.master.machine.actions import LaunchCancelled, LaunchFailed
from hvd_elastic_keras.master.machine.reasons import (
    Departure,
    Evicted,
    Overdue,
    by_own_error,
    failure_of,
    has_exited_well,
    has_failed,
)

EARLY = "before the training was finished"


@pytest.mark.parametrize(
    ("departure", "failed", "own_error", "exited_well", "told"),
    [
        (WorkerExit("w1", 0), False, False, True, f"w1 ended with exit code 0 {EARLY}"),
        (WorkerExit("w1", 1), True, True, False, "w1 failed with exit code 1"),
        (WorkerExit("w1", -9), True, False, False, "w1 was killed by SIGKILL"),
        (WorkerExit("w1", None), True, False, False, "w1 is gone, with an exit code that nobody"),
        (LaunchFailed("w1", "no host"), True, False, False, "w1 could not be started: no host"),
        (LaunchCancelled("w1"), False, False, False, f"w1 was not started {EARLY}"),
        (Evicted("w1", "silent"), True, False, False, "w1 evicted: silent"),
        (Overdue("w1", 2.5), True, False, False, "w1 was killed: it had not left within 2.5 s"),
    ],
)
def test_only_an_exit_code_tells_of_an_own_error_or_of_a_good_end(
    departure: Departure, failed: bool, own_error: bool, exited_well: bool, told: str
) -> None:
    assert has_failed(departure) == failed
    assert by_own_error(departure) == own_error
    assert has_exited_well(departure) == exited_well
    assert failure_of(departure).startswith(told)
