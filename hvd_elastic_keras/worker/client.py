"""Talks to the master: events, heartbeats, the entrance of a round, and pushed updates.

Two threads work in the background: one keeps a long poll open for `WorkerUpdate`s, one sends
heartbeats and queued messages. The training thread only ever waits in `enter`.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from collections.abc import Callable

import requests

from hvd_elastic_keras import protocol
from hvd_elastic_keras.env import WorkerEnvironment
from hvd_elastic_keras.errors import MasterUnreachableError

HEARTBEAT_INTERVAL_S = 0.5
MASTER_TIMEOUT_S = 30.0
"""How long a worker goes on asking a master that does not answer."""
RETRY_S = 0.2
CONNECT_TIMEOUT_S = 5.0


@dataclasses.dataclass
class WorkerActivity:
    """What the heartbeat tells; written by the training thread, read by the heartbeat thread."""

    training: int = 0
    round: int = 0
    step: int = 0
    progress: int = 0
    phase: str = "importing"
    reading: protocol.InputPosition | None = None


class MasterClient:
    """One worker's connection to the master.

    Args:
      on_update: called in a background thread with every new `WorkerUpdate`.
      on_lost: called in a background thread, once, when the master is out of reach for good.
    """

    def __init__(
        self,
        environment: WorkerEnvironment,
        on_update: Callable[[protocol.WorkerUpdate], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self.worker_id = environment.worker_id
        self.activity = WorkerActivity()
        self._url = f"http://{environment.master}/v1"
        self._headers = {"Authorization": f"Bearer {environment.token}"}
        self._on_update = on_update
        self._on_lost = on_lost
        self._outbox: queue.Queue[protocol.Message | threading.Event | None] = queue.Queue()
        self._closed = threading.Event()
        self._entrance = self._session()
        self._asking = self._session()
        self._threads = [
            threading.Thread(target=self._poll, name="elastic-updates", daemon=True),
            threading.Thread(target=self._send, name="elastic-heartbeat", daemon=True),
        ]

    def start(self) -> None:
        """Starts the background threads."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Sends what is queued and stops the heartbeat."""
        self._closed.set()
        self._outbox.put(None)
        self._threads[1].join(timeout=CONNECT_TIMEOUT_S)

    def post(self, event: protocol.Message) -> None:
        """Queues an event; it is sent in order, within milliseconds."""
        self._outbox.put(event)

    def tell(self, event: protocol.Joined | protocol.Refused) -> None:
        """Tells the master something, after all that was posted and before all that comes.

        Raises:
          MasterUnreachableError: the master did not answer for `MASTER_TIMEOUT_S`.
        """
        posted = threading.Event()
        self._outbox.put(posted)
        posted.wait(CONNECT_TIMEOUT_S)
        self._ask("events", protocol.encode(event))

    def enter(self, request: protocol.EnterRequest) -> protocol.EnterReply:
        """Waits at the entrance of the next round until the master has decided.

        Raises:
          MasterUnreachableError: the master did not answer for `MASTER_TIMEOUT_S`.
        """
        while True:
            body = self._ask("enter", protocol.encode(request))
            reply = protocol.decode(body, protocol.EnterReply)
            if reply.assignment or reply.leave or reply.training_over:
                return reply

    def input_position(self) -> protocol.InputPosition | None:
        """Where those read who hold a state. To be called from one thread only.

        Raises:
          requests.RequestException: the master did not answer.
          protocol.ProtocolError: it answered something else.
        """
        body = self._request(self._asking, "GET", "input")
        return protocol.decode(body, protocol.InputReply).position

    def _ask(self, path: str, body: bytes) -> bytes:
        """A request of the training thread, repeated while the master does not answer."""
        deadline = time.monotonic() + MASTER_TIMEOUT_S
        while True:
            try:
                return self._request(self._entrance, "POST", path, body)
            except requests.RequestException as error:
                if time.monotonic() > deadline:
                    raise MasterUnreachableError(
                        f"The master at {self._url} did not answer for {MASTER_TIMEOUT_S:.0f} s: "
                        f"{error}"
                    ) from error
                time.sleep(RETRY_S)

    def _poll(self) -> None:
        session = self._session()
        version = 0
        silent_since: float | None = None
        while not self._closed.is_set():
            query = f"updates?worker_id={self.worker_id}&version={version}"
            try:
                update = protocol.decode(
                    self._request(session, "GET", query), protocol.WorkerUpdate
                )
            except (requests.RequestException, protocol.ProtocolError) as error:
                silent_since = silent_since or time.monotonic()
                if time.monotonic() - silent_since > MASTER_TIMEOUT_S:
                    self._on_lost(f"the master does not answer: {error}")
                    return
                self._closed.wait(RETRY_S)
                continue
            silent_since = None
            if update.version > version:
                version = update.version
                self._on_update(update)

    def _send(self) -> None:
        session = self._session()
        next_heartbeat = time.monotonic()
        while True:
            wait_s = next_heartbeat - time.monotonic()
            try:
                event = self._outbox.get(timeout=wait_s) if wait_s > 0 else self._heartbeat()
            except queue.Empty:
                event = self._heartbeat()
            if event is None:
                return
            if isinstance(event, threading.Event):
                event.set()
                continue
            if isinstance(event, protocol.Heartbeat):
                next_heartbeat = time.monotonic() + HEARTBEAT_INTERVAL_S
            self._deliver(session, event)

    def _heartbeat(self) -> protocol.Heartbeat:
        activity = self.activity
        fields = {f.name: getattr(activity, f.name) for f in dataclasses.fields(activity)}
        return protocol.Heartbeat(worker_id=self.worker_id, **fields)

    def _deliver(self, session: requests.Session, event: protocol.Message) -> None:
        deadline = time.monotonic() + MASTER_TIMEOUT_S
        while True:
            try:
                self._request(session, "POST", "events", protocol.encode(event))
                return
            except requests.RequestException:
                # `_poll` decides when the master is lost for good. A heartbeat is not worth a
                # second try, the next one is newer.
                late = isinstance(event, protocol.Heartbeat) or time.monotonic() > deadline
                if late or self._closed.wait(RETRY_S):
                    return

    def _session(self) -> requests.Session:
        session = requests.Session()
        session.trust_env = False  # no proxy between a worker and its master
        session.headers.update(self._headers)
        return session

    def _request(
        self, session: requests.Session, method: str, path: str, body: bytes | None = None
    ) -> bytes:
        timeout = (CONNECT_TIMEOUT_S, protocol.LONG_POLL_S + CONNECT_TIMEOUT_S)
        response = session.request(method, f"{self._url}/{path}", data=body, timeout=timeout)
        response.raise_for_status()
        return response.content
