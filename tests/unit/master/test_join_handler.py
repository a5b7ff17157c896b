"""Joiners at the master: repeated requests, and places that are gone in the meantime."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

from hvd_elastic_keras.common.control import ExitRequest, JoinRequest, Outcome
from hvd_elastic_keras.launchers.base import WorkerExit
from hvd_elastic_keras.launchers.by_host import ByHost, JoinedWorkers
from hvd_elastic_keras.master.controller import Controller
from hvd_elastic_keras.master.journal import Term
from hvd_elastic_keras.observe.console import Console
from hvd_elastic_keras.settings.job_config import JobConfig
from tests.harness.idle_launcher import IdleLauncher

JOB = JobConfig(num_workers=0, min_workers=1, awaits_joiners=True)


def request(key: str) -> JoinRequest:
    return JoinRequest(key=key, host="node1", sees_job_dir=True)


def test_a_request_that_is_repeated_gets_its_place_unless_that_has_been_given_up(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        console = Console()
        controller = Controller(JOB, tmp_path, console, Term(tmp_path, (), console))
        first = controller.joiners.join(request("a")).worker_id
        other = controller.joiners.join(request("b")).worker_id
        again = controller.joiners.join(request("a")).worker_id
        controller.dispatch(WorkerExit(first, None))
        later = controller.joiners.join(request("a")).worker_id
        assert [first, other, again, later] == ["w0", "w1", "w0", "w2"]

    asyncio.run(run())


def exited(controller: Controller, worker_id: str) -> Outcome:
    return controller.joiners.ended(ExitRequest(worker_id=worker_id, return_code=0)).outcome


def test_a_worker_that_was_given_up_is_awaited_for_a_while_and_named_if_nobody_tells_of_its_end(
    tmp_path: Path,
) -> None:
    async def run() -> str:
        output = io.StringIO()
        console = Console(output)
        controller = Controller(JOB, tmp_path, console, Term(tmp_path, (), console))
        desk = controller.joiners
        told, frozen, left = (desk.join(request(key)).worker_id for key in "abc")
        workers = ByHost(IdleLauncher(), desk.joined)
        for worker_id in (told, frozen):
            workers.kill(worker_id)
        awaited = workers.running()
        assert sorted(awaited) == ["w0", "w1", "w2"]
        assert exited(controller, told) is Outcome.EXPELLED
        exited(controller, left)
        assert workers.running() == [frozen]
        desk.tell_of_those_left(awaited)
        return output.getvalue()

    assert "it is not known that these workers have ended: w1 on node1." in asyncio.run(run())


def test_a_worker_that_was_given_up_long_ago_is_not_awaited() -> None:
    now = [0.0]
    joined = JoinedWorkers(lambda: now[0])
    joined.watch("w0", lambda _: None)
    joined.kill("w0")
    now[0] = 14.0
    assert joined.ending() == ["w0"]
    now[0] = 16.0
    assert joined.ending() == []
    assert not joined.has_ended("w0")
