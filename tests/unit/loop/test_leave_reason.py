"""Which leaving worker may write a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_elastic_keras.common import events, files
from hvd_elastic_keras.loop.leave_reason import CheckpointGuard, LeaveReason, RoundOfTerm, objection
from hvd_elastic_keras.observe.event_log import EventLog

MINE = RoundOfTerm(2, 5)
OLDER, NEWER, LATER_TERM = RoundOfTerm(2, 4), RoundOfTerm(2, 6), RoundOfTerm(3, 0)
UNSEEN = None


@pytest.mark.parametrize(
    ("parting", "may_with"),
    [
        (LeaveReason.TOLD, {MINE, OLDER, NEWER, LATER_TERM, UNSEEN}),
        (LeaveReason.EXPELLED, set()),
        (LeaveReason.WITHOUT_MASTER, {MINE, OLDER, UNSEEN}),
        (LeaveReason.CUT_OFF, {MINE, OLDER}),
    ],
)
def test_a_worker_writes_that_knows_of_nobody_who_goes_on(
    parting: LeaveReason, may_with: set[RoundOfTerm | None]
) -> None:
    seen = (MINE, OLDER, NEWER, LATER_TERM, UNSEEN)
    assert {newest for newest in seen if not objection(parting, MINE, newest)} == may_with


def running(number: int) -> events.RoundRunning:
    return events.RoundRunning(
        round=number,
        training=1,
        world_size=1,
        members=["w0"],
        micro_batches=[8],
        reason="",
        step=0,
        stall_s=0.0,
        noticed_s=0.0,
        entered_s=0.0,
        synced_s=0.0,
        steps_lost=0,
    )


def started(term: int) -> events.JobStarted:
    return events.JobStarted(job_dir="", model="m", num_workers=2, training={}, term=term)


OPENED = events.RoundOpened(round=6, reason="w1 was killed")
AGAIN = events.MasterRestarted(term=3, workers=["w0"])


@pytest.mark.parametrize(
    ("entries", "writes"),
    [
        ([], False),
        ([started(2), running(5)], True),
        ([started(2), running(4)], True),
        ([started(2), running(5), OPENED], True),
        ([started(2), running(5), OPENED, running(6)], False),
        ([started(2), running(5), AGAIN], False),
        ([started(2), running(5), started(3)], False),
        ([started(1), running(9), started(2), running(5)], True),
    ],
)
def test_a_worker_that_has_lost_all_others_goes_by_the_events_of_the_job(
    tmp_path: Path, entries: list[events.Entry], writes: bool
) -> None:
    log = EventLog(tmp_path / files.EVENTS)
    for entry in entries:
        log.write(entry)
    log.close()
    guard = CheckpointGuard(tmp_path, term=lambda: MINE.term)
    assert guard.lets_write(LeaveReason.CUT_OFF, MINE.number) is writes


def test_a_job_directory_that_cannot_be_read_is_not_seen(tmp_path: Path) -> None:
    (tmp_path / files.EVENTS).mkdir()
    guard = CheckpointGuard(tmp_path, term=lambda: MINE.term)
    assert not guard.lets_write(LeaveReason.CUT_OFF, MINE.number)
    assert guard.lets_write(LeaveReason.WITHOUT_MASTER, MINE.number)
