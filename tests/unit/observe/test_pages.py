"""What the master's endpoint gives to browsers and to Prometheus."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from hvd_elastic_keras.common import control, events, messages, protocol
from hvd_elastic_keras.observe import report_page
from tests.harness.idle_master import LIMIT_S, IdleMaster

POLL_S = 0.1
"""Workers that only exist in messages enter one after the other."""
OPEN = ["/dashboard", *(f"/dashboard/{name}" for name in report_page.FILES_OF_DASHBOARD)]


@pytest.fixture(autouse=True)
def short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "LONG_POLL_S", POLL_S)


@pytest.fixture
def master(tmp_path: Path) -> Iterator[IdleMaster]:
    with IdleMaster(tmp_path) as running:
        yield running


class Stream:
    """The dashboard's connection."""

    def __init__(self, master: IdleMaster) -> None:
        host, port = master.controller.address.split(":")
        self._connection = http.client.HTTPConnection(host, int(port), timeout=LIMIT_S)
        token = {"Authorization": f"Bearer {master.controller.token}"}
        self._connection.request("GET", "/v1/stream", headers=token)
        self.answer = self._connection.getresponse()

    def next(self) -> dict[str, Any]:
        lines = (self.answer.readline(), self.answer.readline())
        assert lines[1] == b"\n"
        assert lines[0].startswith(b"data: ")
        found: dict[str, Any] = json.loads(lines[0][6:])
        return found

    def next_with(self, curve: str) -> dict[str, Any]:
        """The next event that has something new of that kind."""
        while not (event := self.next())[curve]:
            pass
        return event

    def close(self) -> None:
        self._connection.close()


def tell_steps(master: IdleMaster, step: int) -> None:
    entry = events.StepsTaken(
        training=1, epoch=0, step=step, metrics={"loss": 0.5}, examples_per_s=10.0, step_s=0.1
    )
    record = protocol.Record(worker_id="w0", training=1, entry=entry)
    assert master.call("POST", "/v1/events", messages.encode(record))[0] == 200


def test_metrics_need_the_token_and_are_those_of_the_job(master: IdleMaster) -> None:
    tell_steps(master, 3)
    status, body = master.call("GET", "/metrics")
    assert status == 200
    assert {"hvd_elastic_world_size 2.0", "hvd_elastic_loss 0.5"} <= set(body.decode().splitlines())
    for token in ({}, {"Authorization": "Bearer wrong"}):
        assert master.call("GET", "/metrics", headers=token)[0] == 401
        assert master.call("GET", "/v1/stream", headers=token)[0] == 401


def test_processor_time_and_memory_of_a_worker_are_those_of_its_heartbeats(
    master: IdleMaster,
) -> None:
    beat = protocol.Heartbeat(
        worker_id="w1", training=1, round=1, step=3, progress=3, phase="training"
    )
    beat = msgspec.structs.replace(beat, cores=1.5, memory_bytes=2**30)
    assert master.call("POST", "/v1/events", messages.encode(beat))[0] == 200
    lines = master.call("GET", "/metrics")[1].decode().splitlines()
    assert 'hvd_elastic_worker_cores{worker="w1"} 1.5' in lines
    assert 'hvd_elastic_worker_memory_bytes{worker="w1"} 1.073741824e+09' in lines
    assert 'worker="w0"' not in "".join(lines), "it has sent no heartbeat"
    workers = {w.worker_id: w for w in master.status().workers}
    assert (workers["w1"].cores, workers["w1"].memory_bytes) == (1.5, 2**30)


def test_the_end_of_a_log_has_whole_lines(master: IdleMaster, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir(exist_ok=True)
    (logs / "w0.log").write_text("first\nlast")
    assert master.call("GET", "/v1/log?worker_id=w0") == (200, b"first\nlast")
    lines = [f"line {i} é" for i in range(5000)]
    (logs / "w1.log").write_text("\n".join(lines))
    status, body = master.call("GET", "/v1/log?worker_id=w1")
    found = body.decode().splitlines()
    assert status == 200
    assert 1000 < len(found) < 5000
    assert found == lines[-len(found) :]


def test_a_line_that_is_drawn_again_and_again_is_shown(master: IdleMaster, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir(exist_ok=True)
    (logs / "w0.log").write_text("".join(f"{n} of 5000 steps\r" for n in range(5000)))
    _, body = master.call("GET", "/v1/log?worker_id=w0")
    assert body.decode().splitlines()[-2:] == ["4998 of 5000 steps", "4999 of 5000 steps"]


@pytest.mark.parametrize("worker", ["w9", "", "../events", "..%2Fevents", "w0 ", "w٣", "keeper"])
def test_no_other_file_is_a_log(master: IdleMaster, tmp_path: Path, worker: str) -> None:
    (tmp_path / "logs").mkdir(exist_ok=True)
    for name in ("../events", "w0 ", "w٣", "keeper"):
        (tmp_path / "logs" / f"{name}.log").write_text("secret")
    status, body = master.call("GET", f"/v1/log?worker_id={quote(worker, safe='%')}")
    assert status == 400
    assert b"which does not exist" in body


@pytest.mark.parametrize("path", OPEN)
def test_the_page_is_the_same_for_anybody_and_lets_nothing_else_in(
    master: IdleMaster, path: str
) -> None:
    host, port = master.controller.address.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=LIMIT_S)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert answer.status == 200
    assert body == report_page.web_file(path.partition("/dashboard/")[2] or "dashboard.html")
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; ")
    assert "unsafe" not in policy
    assert master.controller.token.encode() not in body


def test_other_files_and_methods_are_for_nobody_without_the_token(master: IdleMaster) -> None:
    for method, path in (("GET", "/dashboard/report.html"), ("POST", "/dashboard")):
        assert master.call(method, path, headers={})[0] == 401
    assert master.call("GET", "/dashboard/../control.py")[0] == 404


def test_the_stream_begins_with_everything_and_goes_on_with_what_is_new(
    master: IdleMaster,
) -> None:
    tell_steps(master, 3)
    stream = Stream(master)
    first = stream.next()
    assert first["first"]
    assert [s["size"] for s in first["sizes"]] == [0, 2]
    assert [p["step"] for p in first["steps"]] == [3]
    assert [w["rank"] for w in first["status"]["workers"]] == [0, 1]
    tell_steps(master, 4)
    second = stream.next_with("steps")
    assert not second["first"]
    assert [p["step"] for p in second["steps"]] == [4]
    assert second["sizes"] == []
    stream.close()


def test_the_stream_tells_the_end_of_the_job(tmp_path: Path) -> None:
    with IdleMaster(tmp_path) as running:
        stream = Stream(running)
        assert not stream.next()["over"]
    while not (last := stream.next())["over"]:
        pass
    assert last["finished"]["status"] == "stopped"
    assert stream.answer.readline() == b""
    stream.close()


def test_points_of_curves_are_seen_at_once_and_written_rarely(
    master: IdleMaster, tmp_path: Path
) -> None:
    stream = Stream(master)
    for step in range(1, 30):
        tell_steps(master, step)
    seen: list[int] = []
    while 29 not in seen:
        seen += [p["step"] for p in stream.next()["steps"]]
    assert seen == list(range(1, 30))
    lines = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    written = [line for line in lines if line["event"] == "steps_taken"]
    assert 1 <= len(written) < 29
    stream.close()


def test_the_address_for_a_browser_holds_the_token_where_it_is_not_sent() -> None:
    endpoint = control.Endpoint(version=1, address="h:1", token="abc", pid=1)
    assert endpoint.dashboard == "http://h:1/dashboard#abc"
    endpoint = control.Endpoint(version=1, address="h:1", token="abc", pid=1, fingerprint="f")
    assert endpoint.dashboard == "https://h:1/dashboard#abc"
