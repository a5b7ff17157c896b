"""A host that fails is left alone for a time that grows."""

from __future__ import annotations

from hvd_elastic_keras.launchers.hosts import LONGEST_PAUSE_S, CoolDowns, pause_s


def test_the_pause_grows_with_each_failure_in_a_row() -> None:
    state, now = CoolDowns(), 0.0
    pauses = []
    for _ in range(4):
        state = state.failed("a", now)
        pauses.append(state.failing["a"].until - now)
        now = state.failing["a"].until
    assert pauses == [5.0, 10.0, 20.0, 40.0]
    assert pause_s(10**6) == LONGEST_PAUSE_S


def test_workers_that_fail_together_count_once() -> None:
    once = CoolDowns().failed("a", 1.0)
    assert once.failed("a", 1.2) == once


def test_a_host_that_works_again_begins_anew_and_others_are_not_concerned() -> None:
    state = CoolDowns().failed("a", 0.0).failed("b", 0.0).failed("a", 5.0)
    assert [state.rests(host, 6.0) for host in ("a", "b", "c")] == [True, False, False]
    state = state.works("a")
    assert not state.rests("a", 6.0)
    assert state.failed("a", 10.0).failing["a"].until == 15.0
    assert state.failed("b", 10.0).failing["b"].until == 20.0
