"""Server and controller over real HTTP on loopback, with a launcher that starts nothing."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import stat
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from hvd_elastic_keras.common import control, events, files, messages, protocol
from hvd_elastic_keras.master import controller as controller_module
from hvd_elastic_keras.master.controller import Controller
from hvd_elastic_keras.master.http import server
from hvd_elastic_keras.master.job_end import JobResult
from hvd_elastic_keras.master.journal import Term
from hvd_elastic_keras.master.machine import restart_policy
from hvd_elastic_keras.observe.console import Console
from hvd_elastic_keras.settings.job_config import JobConfig
from tests.harness.idle_launcher import IdleLauncher


class Master:
    """A running controller, and a client of it."""

    def __init__(self, config: JobConfig, job_dir: Path) -> None:
        self.output = io.StringIO()
        self.launcher = IdleLauncher()
        console = Console(self.output)
        self.controller = Controller(config, job_dir, console, Term(job_dir, (), console))
        self.job_dir = job_dir
        self.client: aiohttp.ClientSession | None = None
        self.result: asyncio.Task[JobResult] | None = None

    async def call(
        self, method: str, path: str, body: bytes = b"", token: str | None = None
    ) -> tuple[int, bytes]:
        assert self.client is not None
        headers = {"Authorization": f"Bearer {self.controller.token if token is None else token}"}
        url = f"http://{self.controller.address}{path}"
        async with self.client.request(method, url, data=body, headers=headers) as response:
            return response.status, await response.read()

    async def tell(self, message: messages.Message) -> None:
        status, _ = await self.call("POST", "/v1/events", messages.encode(message))
        assert status == 200

    async def enter(
        self, worker_id: str, from_round: int = 0, step: int = 0, training: int = 1
    ) -> Any:
        request = protocol.EnterRequest(
            worker_id=worker_id,
            training=training,
            from_round=from_round,
            has_state=step > 0,
            progress=step,
            step=step,
        )
        status, body = await self.call("POST", "/v1/enter", messages.encode(request))
        assert status == 200
        return messages.decode(body, protocol.EnterReply)

    async def join(self, worker_id: str, training: int = 1) -> asyncio.Task[Any]:
        await self.tell(
            protocol.Joined(
                worker_id=worker_id,
                training=training,
                pid=1,
                num_micro_batches=8,
                warm_up_s=0.0,
            )
        )
        task = asyncio.create_task(self.enter(worker_id, training=training))
        await asyncio.sleep(0.01)
        return task

    async def confirm(self, worker_id: str, number: int) -> None:
        await self.tell(protocol.Running(worker_id=worker_id, round=number, step=0))

    def events(self) -> list[dict[str, Any]]:
        text = (self.job_dir / "events.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]


async def until(look: Callable[[], object]) -> None:
    """Waits until `look` finds something; `with_master` ends a scenario that takes too long."""
    while not look():
        await asyncio.sleep(0.01)


@pytest.fixture
def with_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[Master], Awaitable[None]]], None]:
    """Returns a function that runs a scenario with a running master of two workers."""
    monkeypatch.setattr(controller_module, "TICK_S", 0.02)

    async def run(scenario: Callable[[Master], Awaitable[None]]) -> None:
        config = JobConfig(num_workers=2, stop_grace_s=0.05, join_window_s=0.05)
        master = Master(config, tmp_path)
        await master.controller.start("127.0.0.1")
        async with aiohttp.ClientSession() as client:
            master.client = client
            master.result = asyncio.create_task(master.controller.run(master.launcher))
            while sum(e["event"] == "worker_started" for e in master.events()) < 2:
                await asyncio.sleep(0.01)
            try:
                await scenario(master)
            finally:
                master.controller.stop("end of the test")
                master.controller.stop("end of the test")
                await master.result

    return lambda scenario: asyncio.run(asyncio.wait_for(run(scenario), timeout=60.0))


@pytest.mark.parametrize("token", ["", "wrong"])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/status"),
        ("GET", "/v1/input"),
        ("POST", "/v1/events"),
        ("POST", "/v1/enter"),
        ("GET", "/v1/updates?worker_id=w0&version=0"),
        ("POST", "/v1/workers"),
        ("POST", "/v1/slots"),
        ("POST", "/v1/stop"),
        ("GET", "/guess/round1:1/global/key"),
    ],
)
def test_a_request_without_the_token_is_refused(
    with_master: Any, method: str, path: str, token: str
) -> None:
    async def scenario(master: Master) -> None:
        status, body = await master.call(method, path, token=token)
        assert status == 401
        reply = messages.decode(body, control.ChangeReply)
        assert not reply.accepted
        assert "token" in reply.text

    with_master(scenario)


@pytest.mark.parametrize("path", ["/v1/status", "/v1/openapi.json"])
def test_a_token_that_reads_gets_the_state_of_the_job(with_master: Any, path: str) -> None:
    async def scenario(master: Master) -> None:
        token = control.read_only_token(master.controller.token)
        assert token != master.controller.token
        assert (await master.call("GET", path, token=token))[0] == 200

    with_master(scenario)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/workers"),
        ("POST", "/v1/slots"),
        ("POST", "/v1/stop"),
        ("POST", "/v1/events"),
        ("POST", "/v1/join"),
        ("GET", "/v1/job"),
        ("GET", "/v1/updates?worker_id=w0&version=0"),
        ("GET", "/v1/log?worker_id=w0"),
        ("GET", "/guess/round1:1/global/key"),
    ],
)
def test_a_token_that_reads_changes_nothing(with_master: Any, method: str, path: str) -> None:
    async def scenario(master: Master) -> None:
        token = control.read_only_token(master.controller.token)
        status, body = await master.call(method, path, b'{"add": 1}', token=token)
        assert status == 403
        assert "may only ask for the state" in messages.decode(body, control.ChangeReply).text

    with_master(scenario)


def test_the_token_that_reads_is_an_hmac_that_other_programs_know() -> None:
    command = "printf read | openssl dgst -sha256 -hmac 0123456789abcdef -r"
    output = subprocess.run(["sh", "-c", command], check=True, capture_output=True, text=True)
    assert output.stdout.split()[0] == control.read_only_token("0123456789abcdef")


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_anybody_may_ask_whether_the_master_answers(with_master: Any, path: str) -> None:
    async def scenario(master: Master) -> None:
        assert await master.call("GET", path, token="") == (200, b"ok\n")

    with_master(scenario)


@pytest.mark.parametrize(
    ("method", "path", "body", "words"),
    [
        ("POST", "/v1/events", b"no json", ["no json", "protocol version 1"]),
        ("POST", "/v1/events", b'{"type": "sang"}', ["sang"]),
        ("POST", "/v1/enter", b'{"worker_id": "w0"}', ["EnterRequest", "training"]),
        ("POST", "/v1/enter", b"", ["EnterRequest"]),
        ("POST", "/v1/workers", b'{"subtract": 1}', ["ChangeRequest", "subtract"]),
        ("POST", "/v1/slots", b"revoke one", ["SlotsRequest", "revoke one"]),
        ("POST", "/v1/slots", b"revoke=1", ["b'revoke=1' was received", "in JSON such as"]),
        ("POST", "/v1/slots", b'{"revoke": }', ["in JSON such as", "JSON is malformed"]),
        ("POST", "/v1/slots", b"[1]", ["Expected `object`, got `array`"]),
        ("POST", "/v1/slots", b'{"revok": 1}', ["unknown field `revok`", '{"revoke": 1']),
        ("POST", "/v1/slots", b'{"revoke": "1"}', ["got `str` for `revoke`", '{"grant": 1}']),
        ("POST", "/v1/workers", b'{"add": 1.5}', ["got `float` for `add`", '{"add": 1}']),
        ("POST", "/v1/slots", b"", ["SlotsRequest", "No content was received"]),
        ("POST", "/v1/slots", b'{"revoke": "1"}', ["SlotsRequest", "revoke"]),
        ("POST", "/v1/slots", b'{"revoke": 1, "slots": 1}', ["SlotsRequest", "slots"]),
        ("POST", "/v1/slots", b"{}", ["Neither revoke nor grant"]),
        ("POST", "/v1/slots", b'{"revoke": 1, "grant": 1}', ["Revoke and grant"]),
        ("POST", "/v1/slots", b'{"revoke": 0}', ["revoke 0", "at least 1"]),
        ("POST", "/v1/slots", b'{"grant": -1}', ["grant -1", "at least 1"]),
        ("POST", "/v1/slots", b'{"revoke": 1, "deadline_s": -3}', ["deadline_s -3"]),
        ("GET", "/v1/updates?worker_id=w0&version=x", b"", ["'x'", "whole number"]),
        ("GET", "/v1/updates?version=1", b"", ["worker id"]),
        ("GET", f"/v1/updates?worker_id=w0&version={'9' * 5000}", b"", ["whole number"]),
        ("POST", "/v1/workers", b'{"add": 1, "remove": 5}', ["add and remove were given"]),
        ("POST", "/v1/events", b"[" * 100_000, ["protocol version 1"]),
    ],
)
def test_a_malformed_message_is_answered_with_what_is_wrong(
    with_master: Any, method: str, path: str, body: bytes, words: list[str]
) -> None:
    async def scenario(master: Master) -> None:
        status, answer = await master.call(method, path, body)
        assert status == 400
        text = json.loads(answer)["text"]
        assert all(word in text for word in words), text
        by_people = path in ("/v1/slots", "/v1/workers")
        assert ("Do all parts of the job run the same version?" in text) <= (not by_people)

    with_master(scenario)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "The token is missing, expected the header"),
        ("secret", "The token is not given as expected, with the header"),
        ("Bearer secret", "The token is wrong: it is not that of this job."),
        ("Bearer ", "The token is not given as expected"),
    ],
)
def test_a_wrong_token_is_answered_with_where_the_right_one_is(
    with_master: Any, given: str | None, words: str
) -> None:
    async def scenario(master: Master) -> None:
        assert master.client is not None
        headers = {"Authorization": given} if given is not None else {}
        url = f"http://{master.controller.address}/v1/status"
        async with master.client.get(url, headers=headers) as response:
            text = json.loads(await response.read())["text"]
        assert response.status == 401
        assert text.startswith(words)
        assert "master.json of the job's directory" in text
        assert "secret" not in text

    with_master(scenario)


def test_workers_are_held_at_the_entrance_until_the_round_is_complete(with_master: Any) -> None:
    async def scenario(master: Master) -> None:
        first = await master.join("w0")
        await asyncio.sleep(0.05)
        assert not first.done()
        second = await master.join("w1")
        places = [(await task).assignment for task in (first, second)]
        assert [place.rank for place in places] == [0, 1]
        port = master.controller.address.rpartition(":")[2]
        assert places[0].rendezvous.startswith(f":{port}/")
        assert places[0].rendezvous.endswith("/round1")
        assert places[0].rendezvous == places[1].rendezvous

    with_master(scenario)


def test_the_rendezvous_of_a_round_needs_its_secret_path_only(with_master: Any) -> None:
    async def scenario(master: Master) -> None:
        tasks = [await master.join("w0"), await master.join("w1")]
        rendezvous = (await tasks[0]).assignment.rendezvous
        path = rendezvous[rendezvous.index("/") :]
        reader = asyncio.create_task(master.call("GET", f"{path}:1/global/0", token=""))
        await asyncio.sleep(0.02)
        assert not reader.done()
        assert await master.call("PUT", f"{path}:1/global/0", b"\x00bytes", "") == (200, b"")
        assert await reader == (200, b"\x00bytes")
        blocked = asyncio.create_task(master.call("GET", f"{path}:1/global/1", token=""))
        await asyncio.sleep(0.02)
        master.launcher.end("w1", -9)
        assert await blocked == (200, b"")

    with_master(scenario)


def test_the_secret_of_one_round_opens_the_store_of_no_other(with_master: Any) -> None:
    async def scenario(master: Master) -> None:
        tasks = [await master.join("w0"), await master.join("w1")]
        first = (await tasks[0]).assignment.rendezvous
        master.launcher.end("w1", -9)
        again = [await master.join("w2"), asyncio.create_task(master.enter("w0", from_round=1))]
        second = (await again[0]).assignment.rendezvous
        paths = [r[r.index("/") :] for r in (first, second)]
        secrets_ = [path.split("/")[1] for path in paths]
        assert len({*secrets_}) == 2
        assert {len(secret) for secret in secrets_} == {64}
        stale = paths[1].replace(secrets_[1], secrets_[0])
        for token in ("", master.controller.token):
            assert (await master.call("PUT", f"{stale}:1/global/0", b"x", token))[0] == 401
        assert (await master.call("PUT", f"{paths[1]}:1/global/0", b"x", ""))[0] == 200
        assert (await master.call("PUT", f"{paths[1]}:1/global/0", b"y", ""))[0] == 409
        assert (await master.call("DELETE", f"{paths[1]}:1/global/0", b"", ""))[0] == 200
        assert (await master.call("PUT", f"{paths[1]}:1/global/0", b"y", ""))[0] == 200
        assert await master.call("GET", f"{paths[0]}:1/global/0", b"", "") == (200, b"")

    with_master(scenario)


def test_the_token_has_256_bits_and_is_told_nowhere(with_master: Any) -> None:
    async def scenario(master: Master) -> None:
        token = master.controller.token
        assert len(bytes.fromhex(token)) == 32
        await master.call("POST", "/v1/events", token.encode(), token="wrong")
        assert token not in master.output.getvalue()
        assert token not in (master.job_dir / files.EVENTS).read_text()

    with_master(scenario)


BEAT = protocol.Heartbeat(worker_id="w0", training=1, round=1, step=7, progress=7, phase="train")
ENTRY = protocol.EnterRequest(
    worker_id="w0", training=1, from_round=1, has_state=True, progress=7, step=7
)
JOINED = protocol.Joined(worker_id="w0", training=2, pid=1, num_micro_batches=8, warm_up_s=0.0)
CLAIM = protocol.ClaimRequest(
    worker_id="w0", name="a", training=1, finished=False, progress=0, number=0, call=0
)


def but(message: messages.Message, **fields: object) -> dict[str, Any]:
    """Returns a message in the form of JSON, with other values."""
    return {**msgspec.to_builtins(message), **fields}


@pytest.mark.parametrize(
    ("path", "message", "words"),
    [
        ("events", but(BEAT, step=10**9), "names step 1000000000, but this job"),
        ("events", but(BEAT, round=3), "names round 3, but this job is only at round 1"),
        ("events", but(BEAT, training=3), "names training 3"),
        ("events", but(BEAT, step=-1), "Expected `int` >= 0"),
        ("events", but(BEAT, step=2**63), "Expected `int`"),
        ("events", but(BEAT, worker_id="w" * 10_000), "length <= 500"),
        ("events", {"type": "done", "worker_id": "w0", "training": 1, "step": 10**9}, "step 10"),
        ("events", {"type": "running", "worker_id": "w0", "round": 9, "step": 0}, "round 9"),
        ("events", but(JOINED, training=10**9), "training 1000000000"),
        ("enter", but(ENTRY, step=10**9), "step 1000000000"),
        ("enter", but(ENTRY, from_round=5), "round 5"),
        ("enter", but(ENTRY, idle_s=-1.0), "Expected `float` >= 0"),
        ("claim", but(CLAIM, training=10**9), "training 1000000000"),
    ],
    ids=lambda value: "",
)
def test_what_cannot_be_true_is_refused_and_changes_nothing(
    with_master: Any, path: str, message: dict[str, Any], words: str
) -> None:
    async def scenario(master: Master) -> None:
        tasks = [await master.join("w0"), await master.join("w1")]
        await asyncio.gather(*tasks)
        for worker_id in ("w0", "w1"):
            await master.confirm(worker_id, 1)
        await master.tell(BEAT)
        before, told = master.controller.status(), master.events()
        status, answer = await master.call("POST", f"/v1/{path}", json.dumps(message).encode())
        assert status == 400
        assert words in json.loads(answer)["text"]
        after = master.controller.status()
        assert _without_ages(after) == _without_ages(before)
        assert master.events() == told

    with_master(scenario)


def _without_ages(status: control.JobStatus) -> control.JobStatus:
    workers = (msgspec.structs.replace(w, heartbeat_age_s=None) for w in status.workers)
    return msgspec.structs.replace(status, workers=tuple(workers), spent_s={})


def test_who_is_not_in_the_running_round_does_not_say_which_step_is_the_newest(
    with_master: Any,
) -> None:
    async def scenario(master: Master) -> None:
        tasks = [await master.join("w0"), await master.join("w1")]
        await asyncio.gather(*tasks)
        await master.tell(msgspec.structs.replace(BEAT, step=5000))
        for worker_id in ("w0", "w1"):
            await master.confirm(worker_id, 1)
        (running,) = (e for e in master.events() if e["event"] == "round_running")
        assert running["steps_lost"] == 0
        await master.tell(msgspec.structs.replace(BEAT, step=5000))
        again = asyncio.create_task(master.enter("w0", from_round=1))
        master.launcher.end("w1", -9)
        assert (await again).assignment.round == 2
        await master.confirm("w0", 2)
        assert master.events()[-1]["steps_lost"] == 5000

    with_master(scenario)


def test_a_long_poll_is_answered_when_the_round_breaks(with_master: Any) -> None:
    async def scenario(master: Master) -> None:
        tasks = [await master.join("w0"), await master.join("w1")]
        await asyncio.gather(*tasks)
        await master.confirm("w0", 1)
        await master.confirm("w1", 1)
        _, body = await master.call("GET", "/v1/updates?worker_id=w0&version=0")
        known = messages.decode(body, protocol.WorkerUpdate)
        assert known.broken_through == 0
        path = f"/v1/updates?worker_id=w0&version={known.version}"
        poll = asyncio.create_task(master.call("GET", path))
        await asyncio.sleep(0.05)
        assert not poll.done()
        master.launcher.end("w1", -9)
        _, body = await poll
        assert messages.decode(body, protocol.WorkerUpdate).broken_through == 1
        await until(lambda: "w2" in master.launcher.launched)
        assert master.launcher.launched == ["w0", "w1", "w2"]

    with_master(scenario)


def test_a_place_given_between_two_long_polls_is_not_lost(
    with_master: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "LONG_POLL_S", 0.05)

    async def scenario(master: Master) -> None:
        first = await master.join("w0")
        reply = await first
        assert (reply.assignment, reply.leave) == (None, ""), "ask again"
        monkeypatch.setattr(protocol, "LONG_POLL_S", 10.0)  # the round may take a while
        second = await master.join("w1")
        assert (await second).assignment.rank == 1
        assert (await master.enter("w0")).assignment.rank == 0

    with_master(scenario)


def test_a_job_runs_to_its_end(with_master: Any) -> None:
    async def scenario(master: Master) -> None:
        tasks = [await master.join("w0"), await master.join("w1")]
        await asyncio.gather(*tasks)
        for worker_id in ("w0", "w1"):
            await master.confirm(worker_id, 1)
        await master.tell(protocol.Console(worker_id="w0", text="epoch 1\n"))
        entry = events.EpochEnd(epoch=0, step=6, metrics={"loss": 0.5})
        await master.tell(protocol.Record(worker_id="w0", training=1, entry=entry))
        for worker_id in ("w0", "w1"):
            await master.tell(protocol.Done(worker_id=worker_id, training=1, step=7))
            master.launcher.end(worker_id, 0)
        assert master.result is not None
        result = await master.result
        assert (result.succeeded, result.stopped, result.step) == (True, False, 7)
        assert "epoch 1\n" in master.output.getvalue()
        names = [event["event"] for event in master.events()]
        assert names[0] == "job_started"
        assert names[-1] == "job_finished"
        assert "epoch_end" in names
        assert master.launcher.killed == []
        assert not (master.job_dir / files.MASTER).exists()

    with_master(scenario)


def test_a_notice_is_told_once_whoever_becomes_rank_0(with_master: Any) -> None:
    async def scenario(master: Master) -> None:
        for worker_id in ("w0", "w1", "w0"):
            for count in (1, 2):
                notice = protocol.Notice(
                    worker_id=worker_id,
                    training=1,
                    text="warning: records are left out",
                    entry=events.RecordsSkipped(count=count, records=[]),
                    prefix=f"[{worker_id}] ",
                )
                await master.tell(notice)
            told = protocol.Notice(worker_id=worker_id, training=1, text="warning: no job_dir")
            await master.tell(told)
            await master.tell(msgspec.structs.replace(told, training=0))
        lines = [line for line in master.output.getvalue().splitlines() if "warning" in line]
        left_out = "[w0] warning: records are left out"
        assert lines == [left_out, left_out, *["warning: no job_dir"] * 2], "once per training"
        skipped = [e["count"] for e in master.events() if e["event"] == "records_skipped"]
        assert skipped == [1, 2]

    with_master(scenario)


def test_a_worker_that_comes_too_late_is_sent_on_to_the_next_training(with_master: Any) -> None:
    async def scenario(master: Master) -> None:
        tasks = [await master.join("w0"), await master.join("w1")]
        await asyncio.gather(*tasks)
        for worker_id in ("w0", "w1"):
            await master.confirm(worker_id, 1)
        await master.call("POST", "/v1/workers", messages.encode(control.ChangeRequest(add=1)))
        for worker_id in ("w0", "w1"):
            await master.tell(protocol.Done(worker_id=worker_id, training=1, step=7))
        late = await (await master.join("w2"))
        assert (late.assignment, late.leave, late.training_over) == (None, "", True)
        tasks = [await master.join(worker_id, training=2) for worker_id in ("w2", "w1", "w0")]
        places = [(await task).assignment for task in tasks]
        assert [place.rank for place in places] == [2, 1, 0]
        assert {place.round for place in places} == {2}

    with_master(scenario)


def test_an_answer_kept_for_one_training_is_not_given_in_the_next(
    with_master: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "LONG_POLL_S", 0.05)

    async def scenario(master: Master) -> None:
        first = await master.join("w0")
        assert (await first).assignment is None, "ask again"
        other = await (await master.join("w1"))
        while other.assignment is None:  # its long poll may end before the round begins
            other = await master.enter("w1")
        # The place of w0 is kept for it. But w0 has begun another training.
        second = await (await master.join("w0", training=2))
        assert second.assignment is None
        while not (last := await master.enter("w1")).training_over:
            assert last.assignment is None, "only asked again"

    with_master(scenario)


def test_the_job_ends_with_what_a_worker_refuses(with_master: Any) -> None:
    async def scenario(master: Master) -> None:
        for worker_id in ("w0", "w1"):
            # The second message fails: the job has ended.
            with contextlib.suppress(aiohttp.ClientError):
                await master.tell(
                    protocol.Refused(worker_id=worker_id, message="epochs=0 was given")
                )
            master.launcher.end(worker_id, 1)
        assert master.result is not None
        result = await master.result
        assert (result.succeeded, result.stopped, result.refused) == (False, False, True)
        assert result.reason == "epochs=0 was given"
        assert master.output.getvalue() == ""
        assert master.launcher.launched == ["w0", "w1"]

    with_master(scenario)


def test_the_endpoint_file_is_for_the_user_alone(with_master: Any) -> None:
    async def scenario(master: Master) -> None:
        path = master.job_dir / files.MASTER
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        endpoint = files.read_endpoint(master.job_dir)
        assert endpoint.address == master.controller.address
        assert endpoint.token == master.controller.token

    with_master(scenario)


def test_status_and_changes_are_answered(with_master: Any) -> None:
    async def scenario(master: Master) -> None:
        body = messages.encode(control.ChangeRequest(add=1))
        _, answer = await master.call("POST", "/v1/workers", body)
        assert messages.decode(answer, control.ChangeReply).accepted
        body = messages.encode(control.ChangeRequest(remove=9))
        _, answer = await master.call("POST", "/v1/workers", body)
        assert not messages.decode(answer, control.ChangeReply).accepted
        _, answer = await master.call("GET", "/v1/status")
        status = messages.decode(answer, control.JobStatus)
        assert status.target_workers == 3
        assert [w.worker_id for w in status.workers] == ["w0", "w1", "w2"]

    with_master(scenario)


def test_slots_are_revoked_and_granted_over_http(with_master: Any) -> None:
    async def scenario(master: Master) -> None:
        tasks = [await master.join("w0"), await master.join("w1")]
        await asyncio.gather(*tasks)
        for worker_id in ("w0", "w1"):
            await master.confirm(worker_id, 1)
        status, body = await master.call("POST", "/v1/slots", b'{"revoke": 1, "deadline_s": 0.1}')
        reply = messages.decode(body, control.SlotsReply)
        assert (status, reply.accepted, reply.workers) == (200, True, ("w1",))
        assert reply.text == "w1 will leave after the current step, or is killed after 0.1 s"
        await until(lambda: "w1 has not left within 0.1 s" in master.output.getvalue())
        await until(lambda: master.launcher.killed)
        assert master.launcher.killed == ["w1"]
        status, body = await master.call("POST", "/v1/slots", b'{"grant": 1, "host": "localhost"}')
        assert (status, messages.decode(body, control.SlotsReply).workers) == (
            200,
            ("w2",),
        )
        await until(lambda: "w2" in master.launcher.launched)
        assert master.launcher.launched == ["w0", "w1", "w2"]

    with_master(scenario)


async def timeless_status(master: Master) -> control.JobStatus:
    """Returns the status without values that grow with time."""
    _, answer = await master.call("GET", "/v1/status")
    return msgspec.structs.replace(messages.decode(answer, control.JobStatus), spent_s={})


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"revoke": 2}', ["2 slots minus 2", "min_workers=1"]),
        (b'{"revoke": 3}', ["3 were to be revoked", "only 2 slots"]),
        (b'{"grant": 15}', ["2 slots plus 15", "max_workers=16"]),
        (b'{"revoke": 1, "host": "x"}', ["no host 'x'", "localhost"]),
    ],
)
def test_what_the_job_cannot_do_is_answered_with_409_and_changes_nothing(
    with_master: Any, body: bytes, words: list[str]
) -> None:
    async def scenario(master: Master) -> None:
        before = await timeless_status(master)
        events = master.events()
        status, answer = await master.call("POST", "/v1/slots", body)
        assert status == 409
        reply = messages.decode(answer, control.SlotsReply)
        assert not reply.accepted
        assert all(word in reply.text for word in words), reply.text
        assert await timeless_status(master) == before
        assert master.events() == events

    with_master(scenario)


@pytest.mark.parametrize(
    ("request_", "body", "status", "words"),
    [
        ("POST /v1/slots", b'{"host": "\xff", "revoke": 1}', 400, "expected a SlotsRequest"),
        ("POST /v1/slots", b'{"host": "\\ud800", "revoke": 1}', 400, "expected a SlotsRequest"),
        ("POST /v1/slot", b"{}", 404, "which is not part of this API. Use one of: GET "),
        ("GET /v1/slots", b"", 405, "GET /v1/slots was requested, expected POST"),
        ("POST /v1/slots", b"x" * (server.MAX_MESSAGE_BYTES + 1), 413, "refused: Maximum"),
        ("GET /v1/input", b"", 500, "GET /v1/input failed by an error of the master"),
    ],
    ids=["no UTF-8", "half a character", "404", "405", "413", "500"],
)
def test_every_error_has_the_same_form(
    with_master: Any, request_: str, body: bytes, status: int, words: str
) -> None:
    async def scenario(master: Master) -> None:
        master.controller.workers.input_position = None  # type: ignore[assignment, method-assign]
        found, answer = await master.call(*request_.split(), body)
        reply = messages.decode(answer, control.ChangeReply)
        assert (found, reply.accepted) == (status, False)
        assert words in reply.text

    with_master(scenario)


@pytest.mark.parametrize("error", [OSError, RuntimeError])
def test_a_worker_that_cannot_be_started_is_a_failure_that_is_replaced(
    with_master: Any, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    monkeypatch.setattr(restart_policy, "_backoff_s", lambda _: 0.0)

    async def scenario(master: Master) -> None:
        master.launcher.failures_to_come = 1
        master.launcher.failure = error("no such host")
        await master.call("POST", "/v1/workers", messages.encode(control.ChangeRequest(add=1)))
        await until(lambda: "w3" in master.launcher.launched)
        assert master.launcher.launched == ["w0", "w1", "w2", "w3"]
        assert "could not be started: no such host" in master.output.getvalue()

    with_master(scenario)


def test_a_worker_that_is_removed_before_its_delayed_start_is_not_started(
    with_master: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restart_policy, "_backoff_s", lambda _: 0.4)

    async def scenario(master: Master) -> None:
        master.launcher.failures_to_come = 1
        await master.call("POST", "/v1/workers", messages.encode(control.ChangeRequest(add=1)))
        await until(lambda: "w3" in master.controller.state.workers)
        body = messages.encode(control.ChangeRequest(remove_worker_id="w3"))
        _, answer = await master.call("POST", "/v1/workers", body)
        assert messages.decode(answer, control.ChangeReply).accepted
        await asyncio.sleep(0.6)
        assert "w3" not in master.launcher.launched

    with_master(scenario)


def test_stopping_twice_ends_a_job_whose_workers_do_not_leave(with_master: Any) -> None:
    async def scenario(master: Master) -> None:
        master.controller.stop("interrupted")
        await asyncio.sleep(0.01)
        master.controller.stop("interrupted")
        assert master.result is not None
        result = await master.result
        assert result.stopped
        assert not master.launcher.running()

    with_master(scenario)
