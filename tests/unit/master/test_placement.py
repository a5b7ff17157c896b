"""Ranks and places."""

from __future__ import annotations

import pytest

from hvd_elastic_keras.common import protocol
from hvd_elastic_keras.master.machine.gathering import assignments, rank_order
from hvd_elastic_keras.master.machine.state import Worker


def worker(
    worker_id: str,
    progress: int | None = 0,
    seniority: int | None = None,
    host: str = "localhost",
) -> Worker:
    """Returns a worker at the entrance. If `progress` is None, it holds no state."""
    entry = protocol.EnterRequest(
        training=1,
        worker_id=worker_id,
        from_round=0,
        has_state=progress is not None,
        progress=progress or 0,
        step=0,
    )
    return Worker(worker_id, launched_at=0.0, host=host, seniority=seniority, entry=entry)


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        ([worker("w1", None), worker("w0", None)], ["w0", "w1"]),
        ([worker("w9", None), worker("w10", None)], ["w9", "w10"]),
        ([worker("w0", 3, 0), worker("w1", 4, 1)], ["w1", "w0"]),
        ([worker("w0", 3, 5), worker("w1", 3, 1)], ["w1", "w0"]),
        ([worker("w0", None), worker("w1", 0, 1)], ["w1", "w0"]),
        ([worker("w0", 3), worker("w1", 3, 1)], ["w1", "w0"]),
    ],
)
def test_rank_order_is_newest_state_then_seniority_then_age(
    workers: list[Worker], expected: list[str]
) -> None:
    assert [w.worker_id for w in rank_order(workers)] == expected


@pytest.mark.parametrize(
    ("progress", "sync", "root_has_state"),
    [
        ([None, None], True, False),
        ([5, None], True, True),
        ([5, 4], True, True),
        ([5, 5], False, True),
        ([5], False, True),
        ([None], True, False),
    ],
)
def test_a_sync_is_needed_unless_all_hold_the_same_state(
    progress: list[int | None], sync: bool, root_has_state: bool
) -> None:
    ordered = rank_order([worker(f"w{i}", p) for i, p in enumerate(progress)])
    places = assignments(3, ordered)
    assert {(p.sync, p.root_has_state) for p in places.values()} == {(sync, root_has_state)}


def test_local_and_cross_ranks_follow_the_hosts() -> None:
    hosts = ["a", "b", "a", "a", "b"]
    places = assignments(7, [worker(f"w{i}", host=h) for i, h in enumerate(hosts)])
    rows = [
        (p.rank, p.local_rank, p.local_size, p.cross_rank, p.cross_size) for p in places.values()
    ]
    assert rows == [
        (0, 0, 3, 0, 2),
        (1, 0, 2, 1, 2),
        (2, 1, 3, 0, 2),
        (3, 2, 3, 0, 1),
        (4, 1, 2, 1, 2),
    ]
    assert {p.round for p in places.values()} == {7}
    assert {p.size for p in places.values()} == {5}
    assert {p.members for p in places.values()} == {("w0", "w1", "w2", "w3", "w4")}
