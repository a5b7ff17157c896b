"""A command that is sent again, to the same master or to the next one, counts once."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import shutil
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hvd_elastic_keras.cli import control_job
from hvd_elastic_keras.common import control, files
from hvd_elastic_keras.common.errors import MasterUnreachableError
from hvd_elastic_keras.launchers.base import LaunchedWorker
from hvd_elastic_keras.master import join_handler, journal
from hvd_elastic_keras.master.controller import Controller
from hvd_elastic_keras.master.journal import Term
from hvd_elastic_keras.observe.console import Console
from tests.harness.idle_launcher import IdleLauncher, OnExit
from tests.harness.idle_master import LIMIT_S, PATIENT


class Adopting(IdleLauncher):
    """A launcher that finds all workers of the master before."""

    def adopt(self, worker_id: str, on_exit: OnExit) -> LaunchedWorker | None:
        self.on_exit[worker_id] = on_exit
        return LaunchedWorker("localhost", 1)


@contextlib.asynccontextmanager
async def running(job_dir: Path, launcher: IdleLauncher) -> AsyncIterator[Controller]:
    """Yields a master of two workers, which start or were left by another master."""
    console = Console(io.StringIO())
    controller = Controller(PATIENT, job_dir, console, Term(job_dir, (), console))
    await controller.start("127.0.0.1")
    run = asyncio.ensure_future(controller.run(launcher))
    await asyncio.sleep(0)
    await controller.kept()
    try:
        yield controller
    finally:
        controller.stop("end of the test")
        controller.stop("end of the test")
        await run


def num_workers(controller: Controller) -> int:
    return len(controller.status().workers)


def test_a_command_counts_once_for_each_id(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, IdleLauncher()) as controller:
            for command_id, after in (("a", 3), ("a", 3), ("b", 4), ("a", 4), ("", 5), ("", 6)):
                request = control.ChangeRequest(add=1, command_id=command_id)
                reply = controller.change_workers(request)
                assert (reply.accepted, reply.text) == (True, "1 more is starting")
                assert num_workers(controller) == after

    asyncio.run(scenario())


def test_another_request_with_the_id_of_an_earlier_one_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, IdleLauncher()) as controller:
            assert controller.change_slots(control.SlotsRequest(grant=1, command_id="a")).accepted
            revoked = controller.change_slots(control.SlotsRequest(revoke=1, command_id="a"))
            added = controller.change_workers(control.ChangeRequest(add=1, command_id="a"))
            for reply in (revoked, added):
                assert not reply.accepted
                assert "command_id 'a' was given with another request before" in reply.text
            assert num_workers(controller) == 3

    asyncio.run(scenario())


def test_a_refusal_is_no_answer_for_ever(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, IdleLauncher()) as controller:
            revoke = control.SlotsRequest(revoke=2, command_id="a")
            assert not controller.change_slots(revoke).accepted
            controller.change_workers(control.ChangeRequest(add=1))
            assert controller.change_slots(revoke).workers == ("w2", "w1")

    asyncio.run(scenario())


def test_the_next_master_gives_the_recorded_answer(tmp_path: Path) -> None:
    grant = control.SlotsRequest(grant=1, command_id="a")
    before, after = tmp_path / "before", tmp_path / "after"

    async def scenario() -> None:
        before.mkdir()
        async with running(before, IdleLauncher()) as controller:
            answer = controller.change_slots(grant)
            assert answer.workers == ("w2",)
            await controller.kept()
            shutil.copytree(before, after)  # as if the master had been killed now
        async with running(after, Adopting()) as controller:
            assert num_workers(controller) == 3
            assert controller.change_slots(grant) == answer
            assert num_workers(controller) == 3

    asyncio.run(scenario())


def test_a_decision_and_its_answer_are_written_as_one(tmp_path: Path) -> None:
    async def scenario() -> list[tuple[int, bool]]:
        async with running(tmp_path, IdleLauncher()) as controller:
            for request in (
                control.ChangeRequest(add=2),
                control.ChangeRequest(remove=3, command_id="a"),
            ):
                controller.change_workers(request)
                await controller.kept()
            lines = (tmp_path / files.JOURNAL).read_bytes().splitlines(keepends=True)
            kept = [entry.decisions for entry in map(journal._entry, lines) if entry]
            staying = [sum(not w.leaving for w in d.state.workers.values()) for d in kept]
            return [(n, "a" in d.answers) for n, d in zip(staying, kept, strict=True)]

    seen = asyncio.run(scenario())
    assert seen[0] == (2, False)
    assert seen[-1] == (1, True)
    assert set(seen) == {(2, False), (4, False), (1, True)}


def test_the_newest_answers_are_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, IdleLauncher()) as controller:
            for number in range(join_handler.KEPT_ANSWERS + 1):
                grant = control.SlotsRequest(grant=1, command_id=str(number))
                assert controller.change_slots(grant).accepted
                assert controller.change_slots(control.SlotsRequest(revoke=1)).accepted
            await controller.kept()
            last = journal.Journal(tmp_path / files.JOURNAL).last
            assert last is not None
            kept = list(map(str, range(1, join_handler.KEPT_ANSWERS + 1)))
            assert sorted(last.decisions.answers, key=int) == kept

    asyncio.run(scenario())


# --- ctl ---------------------------------------------------------------------------------


class LosesAnswers(threading.Thread):
    """Passes requests to a master, and the answers back, except the first `losses` answers."""

    def __init__(self, job_dir: Path, losses: int) -> None:
        super().__init__(daemon=True)
        self._endpoint = files.read_endpoint(job_dir)
        self._losses = losses
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.answers: list[bytes] = []
        address = "{}:{}".format(*self._listening.getsockname())
        files.write_endpoint(job_dir, address, self._endpoint.token)
        self.start()

    def run(self) -> None:
        while True:
            asking, _ = self._listening.accept()
            master = socket.create_connection(("127.0.0.1", self._endpoint.port))
            with asking, master:
                master.sendall(_with_body(asking))
                self.answers.append(_with_body(master))
                if len(self.answers) > self._losses:
                    asking.sendall(self.answers[-1])


def _with_body(connection: socket.socket) -> bytes:
    connection.settimeout(LIMIT_S)
    data = b""
    while not data.endswith(b"}"):
        more = connection.recv(65536)
        if not more:
            raise ConnectionError(f"closed after {data!r}")
        data += more
    return data


def test_ctl_sends_a_command_again_whose_answer_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        async with running(tmp_path, IdleLauncher()) as controller:
            relay = LosesAnswers(tmp_path, losses=1)
            grant = control.SlotsRequest(grant=1)
            assert await asyncio.to_thread(control_job.change_slots, tmp_path, grant) == 0
            assert len(relay.answers) == 2
            assert num_workers(controller) == 3

    asyncio.run(scenario())
    assert capsys.readouterr().out == "w2 is starting\n"


def test_ctl_says_how_to_ask_again_if_it_does_not_know(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, IdleLauncher()) as controller:
            LosesAnswers(tmp_path, losses=2)
            add = control.ChangeRequest(add=1)
            with pytest.raises(MasterUnreachableError, match="not known whether") as raised:
                await asyncio.to_thread(control_job.change_workers, tmp_path, add)
            found = re.search(r"--command_id=(\w{16}),", str(raised.value))
            assert found is not None
            again = control_job.change_request("add", "1", found[1])
            assert await asyncio.to_thread(control_job.change_workers, tmp_path, again) == 0
            assert num_workers(controller) == 3

    asyncio.run(scenario())
