"""SIGTERM while there is no master: a worker leaves in time, and by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

from hvd_elastic_keras.common import protocol
from hvd_elastic_keras.common.errors import ElasticError, LeavingAloneError, WorkerLeavingError
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.settings.env import WorkerEnvironment
from hvd_elastic_keras.worker import elastic_session, end_process
from hvd_elastic_keras.worker.elastic_session import ElasticSession
from hvd_elastic_keras.worker.session import EntryReport
from tests.harness.endpoint_thread import LIMIT_S, Endpoint, served

NEW = EntryReport(has_state=True, progress=3, step=3)
IS_IMPORTING = """
import signal, sys, threading
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.worker import elastic_session
elastic_session.WITHOUT_WORK_S = 0.1
elastic_session.ElasticSession(env.worker_environment()).start()
print("started", flush=True)
threading.Event().wait()
"""


class Alone:
    """A communicator of one."""

    in_collective = False

    def computing(self) -> bool:
        return False

    def abort(self, through_round: int) -> bool:
        return False


@pytest.fixture(autouse=True)
def this_process_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic_session, "LEAVE_ALONE_S", 0.1)
    monkeypatch.setattr(end_process, "if_it_does_not_leave", lambda: None)


def joined(endpoint: Endpoint) -> ElasticSession:
    """The session of a warm worker."""
    session = ElasticSession(WorkerEnvironment(endpoint.address, "token", "w0", ""))
    session.client.start()
    session.join(Alone(), num_micro_batches=8, warm_up_s=0.0)
    return session


def test_a_worker_that_no_master_hears_leaves_after_the_step() -> None:
    with served() as endpoint:
        session = joined(endpoint)
    changed = threading.Event()
    session.on_change(changed.set)
    session._on_sigterm()
    assert changed.is_set()
    assert session.change_pending
    with pytest.raises(LeavingAloneError, match="SIGTERM"):
        session.enter(NEW)
    session.close()


def test_who_waits_for_a_place_waits_no_longer() -> None:
    with served() as endpoint:
        session = joined(endpoint)
    ended: Future[None] = Future()

    def enter() -> None:
        try:
            session.enter(NEW)
        except ElasticError as error:
            ended.set_exception(error)

    threading.Thread(target=enter, daemon=True).start()
    session._on_sigterm()
    with pytest.raises(WorkerLeavingError, match="SIGTERM"):
        ended.result(LIMIT_S)
    session.close()


def test_if_a_master_hears_it_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic_session, "LEAVE_ALONE_S", LIMIT_S)
    with served() as endpoint:
        session = joined(endpoint)
        session._on_sigterm()
        assert endpoint.told.next(protocol.Leaving).reason == "SIGTERM"
        assert not session.leaving
        session.close()


def test_a_master_that_does_not_know_of_it_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic_session, "LEAVE_ALONE_S", LIMIT_S)
    with served() as endpoint:
        session = joined(endpoint)
        session._on_sigterm()
        endpoint.told.next(protocol.Leaving)
        session._on_update(protocol.WorkerUpdate(version=7))
        assert endpoint.told.next(protocol.Leaving).reason == "SIGTERM"
        session._on_update(protocol.WorkerUpdate(version=8, leave="SIGTERM"))
        session.running(3, "training")
        told = endpoint.told.messages.get(timeout=LIMIT_S)
        while not isinstance(told, protocol.Running):
            assert not isinstance(told, protocol.Leaving), "it knows"
            told = endpoint.told.messages.get(timeout=LIMIT_S)
        session.close()


def test_a_worker_that_is_not_warm_ends_as_if_the_signal_were_not_caught(tmp_path: Path) -> None:
    scratch = tmp_path / f"{env.SCRATCH_PREFIX}w0-x"
    scratch.mkdir()
    variables = WorkerEnvironment("127.0.0.1:1", "token", "w0", str(tmp_path)).to_variables()
    with subprocess.Popen(
        [sys.executable, "-c", IS_IMPORTING],
        env={**os.environ, **variables, "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "started\n"
        worker.send_signal(signal.SIGTERM)
        try:
            assert worker.wait(LIMIT_S) == -signal.SIGTERM
        finally:
            worker.kill()
    assert not scratch.exists()
