"""One trace of a job from the timelines of its rounds."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.events import JobStarted, RoundOpened
from hvd_elastic_keras.observe import timeline
from hvd_elastic_keras.observe.event_log import EventLog

FIRST = """[
{"name": "process_name", "ph": "M", "pid": 0, "args":
 {"start_time_since_epoch_in_micros":12000000}},
{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "grouped"}},
{"ph": "B", "name": "ALLREDUCE", "ts": 10, "pid": 1},{"ph": "E", "ts": 20, "pid": 1}]"""
CUT_OFF = FIRST.replace("12000000", "15000000")[:-12]


def job(directory: Path) -> Path:
    (directory / files.TIMELINES).mkdir()
    for number, text in ((1, FIRST), (2, CUT_OFF)):
        files.timeline_of_round(directory / files.TIMELINES, number).write_text(text)
    events = [
        {"time": 11.0, "event": "job_started"},
        {"time": 14.5, "event": "worker_exited", "worker_id": "w1"},
    ]
    (directory / files.EVENTS).write_text("".join(json.dumps(e) + "\n" for e in events))
    return directory


def parsed(text: str) -> list[timeline.Event]:
    return list(timeline.parse(io.StringIO(text)))


@pytest.mark.parametrize("piece", [1, 7, 2**16])
def test_a_file_that_was_cut_off_is_read_as_far_as_it_goes(
    piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "PIECE", piece)
    assert parsed(FIRST) == json.loads(FIRST)
    assert parsed(CUT_OFF) == json.loads(FIRST.replace("12000000", "15000000"))[:-1]
    assert parsed("") == parsed("[") == []


def test_no_more_than_a_piece_of_a_file_is_in_memory() -> None:
    class Endless(io.StringIO):
        def read(self, size: int | None = -1) -> str:
            assert size == timeline.PIECE
            return '{"ph": "E", "ts": 20, "pid": 1},' * (timeline.PIECE // 32)

    events = timeline.parse(Endless())
    assert all(next(events) == {"ph": "E", "ts": 20, "pid": 1} for _ in range(10_000))


def test_a_run_begins_at_its_own_start_and_lines_that_are_torn_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / files.EVENTS
    path.write_text('{"time": 1.0, "event": "job_started"}\n{"time": 2.0, "event": "slots_gr')
    log = EventLog(path)
    log.write(JobStarted(job_dir="jobs/demo", model="m", num_workers=1, training={}))
    log.write(RoundOpened(round=1, reason="start"))
    log.close()
    entries = timeline.entries_of_last_run(path.read_text().splitlines())
    assert [e["event"] for e in entries] == ["job_started", "round_opened"]


def test_rounds_lie_where_they_were_on_the_clock_of_the_job(tmp_path: Path) -> None:
    target = tmp_path / "trace.json"
    assert timeline.write_merged(job(tmp_path), target) == 2
    events = json.loads(target.read_text())["traceEvents"]
    begins = [(e["pid"], e["ts"]) for e in events if e["ph"] == "B"]
    assert begins == [(1_000_001, 1_000_010), (2_000_001, 4_000_010)]
    names = [e["args"]["name"] for e in events if e.get("name") == "process_name"]
    assert names[:3] == ["membership", "round-000001", "round-000001 grouped"]


def test_changes_of_membership_are_marked(tmp_path: Path) -> None:
    target = tmp_path / "trace.json"
    timeline.write_merged(job(tmp_path), target)
    marks = [e for e in json.loads(target.read_text())["traceEvents"] if e["ph"] == "i"]
    assert [(m["name"], m["ts"], m["args"]) for m in marks] == [
        ("worker_exited", 3_500_000.0, {"worker_id": "w1"})
    ]
