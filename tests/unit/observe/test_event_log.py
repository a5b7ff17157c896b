"""`events.jsonl` on disk."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_keras.common import events
from hvd_elastic_keras.observe import event_log
from hvd_elastic_keras.observe.event_log import EventLog


def entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def epoch_end(epoch: int) -> events.EpochEnd:
    return events.EpochEnd(epoch=epoch, step=8, metrics={})


def test_lines_are_numbered_on_when_a_job_is_started_again(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    for _ in range(2):
        log = EventLog(path)
        log.write(events.JobStopping(reason="interrupted"))
        log.write(epoch_end(0))
        log.close()
    assert [e["seq"] for e in entries(path)] == [1, 2, 3, 4]
    assert [e["event"] for e in entries(path)] == ["job_stopping", "epoch_end"] * 2


def steps_taken(step: int) -> events.StepsTaken:
    return events.StepsTaken(
        training=1, epoch=None, step=step, metrics={}, examples_per_s=None, step_s=0.1
    )


@pytest.mark.parametrize(
    ("between", "steps"),
    [
        ((), [1, 3]),
        ((events.RoundOpened(round=2, reason="w1 joins"),), [1, 3]),
        ((epoch_end(0),), [1]),
    ],
)
def test_the_last_steps_of_a_job_are_written_unless_an_epoch_has_ended_since(
    between: tuple[events.Entry, ...], steps: list[int], tmp_path: Path
) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    for step in range(1, 4):  # within a second
        log.write(steps_taken(step))
    for entry in between:
        log.write(entry)
    log.write(events.JobFinished(status="finished", reason="", training=1, step=3))
    log.close()
    found = entries(tmp_path / "events.jsonl")
    assert [e["step"] for e in found if e["event"] == "steps_taken"] == steps
    assert found[-1]["event"] == "job_finished"
    assert [e["seq"] for e in found] == list(range(1, len(found) + 1))


@pytest.mark.parametrize(
    ("there", "first"),
    [
        ('{"seq": 5, "event": "waiting"}\n{"seq": 6, "event": "wai', 6),
        ('{"event": "waiting"}\n', 1),
        ('{"seq": "x", "event": "waiting"}\n', 1),
    ],
)
def test_a_line_that_is_torn_or_has_no_number_does_not_count(
    there: str, first: int, tmp_path: Path
) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(there)
    log = EventLog(path)
    log.write(epoch_end(0))
    log.close()
    assert json.loads(path.read_text().splitlines()[-1])["seq"] == first


@contextlib.contextmanager
def full_disk(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is written meanwhile finds no room."""
    full = os.open("/dev/full", os.O_WRONLY)
    with monkeypatch.context() as patched:
        patched.setattr(log, "_file", full)
        yield
    os.close(full)


def test_entries_for_which_a_disk_has_no_room_are_written_when_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.write(epoch_end(0))
    with full_disk(log, monkeypatch):
        log.write(epoch_end(1))
        log.write(epoch_end(2))
    assert [e["seq"] for e in entries(path)] == [1]
    log.write(epoch_end(3))
    log.close()
    assert [(e["seq"], e["epoch"]) for e in entries(path)] == [(n + 1, n) for n in range(4)]


def test_the_numbers_show_which_entries_are_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "MOST_UNWRITTEN", 1)
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    with full_disk(log, monkeypatch):
        log.write(epoch_end(0))
        log.write(epoch_end(1))
        monkeypatch.setattr(event_log, "MOST_UNWRITTEN", 2**20)
        log.write(epoch_end(2))
    log.close()
    assert [(e["seq"], e["epoch"]) for e in entries(path)] == [(1, 0), (3, 2)]
