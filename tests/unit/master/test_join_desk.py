"""Joiners at the master: a request that is repeated, and places that are gone meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hvd_elastic_keras.common.config import JobConfig
from hvd_elastic_keras.common.joining import JoinRequest
from hvd_elastic_keras.launchers.base import WorkerExit
from hvd_elastic_keras.master.controller import Controller
from hvd_elastic_keras.master.term import Term
from hvd_elastic_keras.observe.console import Console

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
