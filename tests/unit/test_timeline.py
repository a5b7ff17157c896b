"""One trace of a job from the timelines of its rounds."""

from __future__ import annotations

import json
from pathlib import Path

from hvd_elastic_keras import files, timeline

FIRST = """[
{"name": "process_name", "ph": "M", "pid": 0, "args":
 {"start_time_since_epoch_in_micros":12000000}},
{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "grouped"}},
{"ph": "B", "name": "ALLREDUCE", "ts": 10, "pid": 1},{"ph": "E", "ts": 20, "pid": 1}]"""
CUT_OFF = FIRST.replace("12000000", "15000000")[:-12]


def job(directory: Path) -> Path:
    (directory / files.TIMELINES).mkdir()
    for number, text in ((1, FIRST), (2, CUT_OFF)):
        timeline.file_of_round(directory / files.TIMELINES, number).write_text(text)
    events = [
        {"time": 11.0, "event": "job_started"},
        {"time": 14.5, "event": "worker_exited", "worker_id": "w1"},
    ]
    (directory / files.EVENTS).write_text("".join(json.dumps(e) + "\n" for e in events))
    return directory


def test_a_file_that_was_cut_off_is_read_as_far_as_it_goes() -> None:
    assert timeline.parse(CUT_OFF) == timeline.parse(FIRST.replace("12000000", "15000000"))[:-1]
    assert timeline.parse("") == timeline.parse("[") == []


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
