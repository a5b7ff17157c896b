"""The line about a new round, in words."""

from __future__ import annotations

import pytest

from hvd_elastic_keras.master.machine.phases import Confirming
from hvd_elastic_keras.master.machine.reasons import REVOKED, START, Reason, joins, leaves
from hvd_elastic_keras.master.machine.rounds import round_line


def line(
    *reasons: Reason,
    members: tuple[str, ...] = ("w0", "w1"),
    before: int = 3,
    shares: tuple[int, ...] = (4, 4),
    training: int = 1,
    lost: int = 0,
) -> str:
    confirming = Confirming(7, before, members, reasons)
    return round_line(confirming, list(shares), training, lost, stall_s=0.304)


@pytest.mark.parametrize(
    ("training", "start"), [(1, "start, 4+4 micro-batches"), (2, "start training 2, 4+4 micro-")]
)
def test_the_first_round_of_a_training_has_lost_nothing(training: int, start: str) -> None:
    text = line(START, before=0, training=training)
    assert text.startswith(f"round 7: 2 workers (w0, w1) {start}")
    assert "lost" not in text


def test_a_change_is_told_with_its_reasons_and_what_it_has_cost() -> None:
    assert line(leaves("w2", REVOKED), lost=1) == (
        "round 7: 3 → 2 workers (w0, w1), 4+4 micro-batches: w2 leaves (slot revoked); "
        "stalled 0.30 s, 1 step lost"
    )


def test_who_is_left_alone_is_one_worker() -> None:
    text = line(leaves("w1", REVOKED), members=("w0",), before=2, shares=(1,))
    assert text.startswith("round 7: 2 → 1 worker (w0), 1 micro-batch: ")


def test_a_loop_of_ones_own_has_no_micro_batches_and_counts_commits() -> None:
    text = line(joins("w1"), before=1, shares=(), lost=2)
    assert text == "round 7: 1 → 2 workers (w0, w1): w1 joins; stalled 0.30 s, 2 commits lost"
