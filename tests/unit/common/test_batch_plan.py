"""Which worker computes which micro-batches."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_keras.common.batch_plan import Share, describe_shares, share_of, shares_of


@pytest.mark.parametrize(
    ("size", "num_micro_batches", "expected"),
    [(1, 8, [8]), (2, 8, [4, 4]), (3, 8, [3, 3, 2]), (8, 8, [1] * 8), (3, 2, [1, 1, 0])],
)
def test_shares_are_as_even_as_whole_numbers_allow(
    size: int, num_micro_batches: int, expected: list[int]
) -> None:
    shares = [share_of(rank, size, num_micro_batches) for rank in range(size)]
    assert [share.num_micro_batches for share in shares] == expected


@given(size=st.integers(1, 50), num_micro_batches=st.integers(0, 200))
def test_shares_follow_each_other_without_gap_or_overlap(size: int, num_micro_batches: int) -> None:
    shares = [share_of(rank, size, num_micro_batches) for rank in range(size)]
    assert shares[0].first == 0
    assert shares[-1].last == num_micro_batches
    assert all(a.last == b.first for a, b in itertools.pairwise(shares))
    counts = [share.num_micro_batches for share in shares]
    assert max(counts) - min(counts) <= 1
    assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize(("rank", "size"), [(-1, 2), (2, 2), (0, 0)])
def test_a_rank_outside_the_world_is_refused(rank: int, size: int) -> None:
    with pytest.raises(ValueError, match=rf"rank={rank} was given, expected a value in \[0, "):
        share_of(rank, size, 8)


def test_a_share_counts_its_micro_batches() -> None:
    assert Share(3, 5).num_micro_batches == 2


@pytest.mark.parametrize(
    ("shares", "text"),
    [
        ([8], "8"),
        ([3, 3, 2], "3+3+2"),
        ([2, 2, 1, 1, 1, 1], "2+2+1+1+1+1"),
        (shares_of(7, 20), "6x3+1x2"),
        (shares_of(16, 16), "16x1"),
    ],
)
def test_shares_are_told_one_by_one_or_in_groups(shares: list[int], text: str) -> None:
    assert describe_shares(shares) == text
