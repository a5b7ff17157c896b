"""A worker's client of a real master's endpoint."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvd_elastic_keras.common import files, protocol
from hvd_elastic_keras.common.errors import MasterUnreachableError
from hvd_elastic_keras.master.http.server import MAX_MESSAGE_BYTES
from tests.harness.endpoint_thread import LIMIT_S, Endpoint, served


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with served() as thread:
        yield thread


def test_a_message_that_is_refused_holds_nothing_back(
    endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    client = endpoint.client()
    client.post(protocol.Console(worker_id="w0", text="x" * MAX_MESSAGE_BYTES))
    client.post(protocol.Console(worker_id="w0", text="after it"))
    client.start()
    assert endpoint.told.next(protocol.Console).text == "after it"
    assert endpoint.told.next(protocol.Heartbeat).worker_id == "w0"
    client.close()
    (warning,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert warning.startswith("the master refuses a Console of 4194")
    assert "413" in warning


def test_a_message_whose_answer_is_lost_is_sent_again_and_counts_once(endpoint: Endpoint) -> None:
    client = endpoint.client()
    endpoint.told.answer_lost.set()
    client.post(protocol.Console(worker_id="w0", text="first"))
    client.post(protocol.Console(worker_id="w0", text="second"))
    client.start()
    assert endpoint.told.next(protocol.Console).text == "first"
    assert endpoint.told.next(protocol.Console).text == "second"
    assert not endpoint.told.answer_lost.is_set()
    client.close()


# --- another master ----------------------------------------------------------------------


def test_what_no_master_has_heard_is_told_to_the_next_one_wherever_it_listens(
    tmp_path: Path,
) -> None:
    with served(term=1) as first:
        client = first.client(str(tmp_path))
        client.start()
        first.told.next(protocol.Heartbeat)
    client.post(protocol.Console(worker_id="w0", text="while there was no master"))
    with served(term=2) as second:
        files.write_endpoint(tmp_path, second.address, "token")
        assert second.told.next(protocol.Console).text == "while there was no master"
        assert second.told.next(protocol.Heartbeat).worker_id == "w0"
        client.close()


def test_a_worker_listens_to_no_master_that_another_one_has_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lost = threading.Event()
    with served(term=2) as second:
        client = second.client(str(tmp_path), master_timeout_s=1.0)
        client._on_lost = lambda reason: lost.set()
        client.start()
        second.told.next(protocol.Heartbeat)
        # The second one comes when the worker has read the answer to the first, with its term.
        second.told.next(protocol.Heartbeat)
    with served(term=1) as first:
        files.write_endpoint(tmp_path, first.address, "token")
        client.post(protocol.Console(worker_id="w0", text="not for the first"))
        assert lost.wait(LIMIT_S)
        client.close()
        assert first.told.messages.empty()


def test_a_worker_that_leaves_does_not_wait_for_a_master_for_ever() -> None:
    with served() as first:
        client = first.client(master_timeout_s=0.5)
        client.start()
        first.told.next(protocol.Heartbeat)
    client.post(protocol.Console(worker_id="w0", text="the last words"))
    client.close()
    with pytest.raises(MasterUnreachableError, match="--resume --job_dir="):
        client.root()
