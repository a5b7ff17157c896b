"""Talks to the master: events, heartbeats, the entrance of a round, and pushed updates.

Two threads work in the background: one keeps a long poll open for `WorkerUpdate`s, the other sends
heartbeats and queued messages. The training thread waits only for requests that need an answer:
`tell`, `enter`, `claim`, `release` and `root`.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable

import msgspec
import psutil
import requests
import tenacity

from hvd_elastic_keras.common import messages, protocol
from hvd_elastic_keras.common.errors import MasterUnreachableError
from hvd_elastic_keras.common.phase_hold import PhaseHold
from hvd_elastic_keras.settings.env import WorkerEnvironment
from hvd_elastic_keras.worker import standstill
from hvd_elastic_keras.worker.abortable import Abortable
from hvd_elastic_keras.worker.master_connection import CONNECT_TIMEOUT_S, MasterConnection
from hvd_elastic_keras.worker.standstill import Standstill

log = logging.getLogger(__name__)
HEARTBEAT_INTERVAL_S = 0.5
RETRY_S = 0.2


@dataclasses.dataclass
class WorkerActivity:
    """Content of the heartbeat. The training thread writes it, the heartbeat thread reads it."""

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
        self._communicator: Abortable | None = None
        self._process = psutil.Process()
        self.standstill = Standstill()
        self.hold = PhaseHold(environment.job_path, environment.worker_id)
        self._environment = environment
        self._connection = MasterConnection(environment)
        self._on_update = on_update
        self._on_lost = on_lost
        self._outbox: queue.Queue[messages.Message | threading.Event | None] = queue.Queue()
        self._numbers = itertools.count(1)
        self._closed = threading.Event()
        self._gone = threading.Event()
        """Set when this worker no longer waits for a master."""
        self._entrance = self._connection.session()
        self._asking = self._connection.session()
        self._threads = [
            threading.Thread(target=self._poll, name="elastic-updates", daemon=True),
            threading.Thread(target=self._send, name="elastic-heartbeat", daemon=True),
        ]

    @property
    def term(self) -> int:
        """The term of the newest master that has answered."""
        return self._connection.term

    def start(self) -> None:
        """Starts the background threads."""
        for thread in self._threads:
            thread.start()

    def watch_silence(self) -> None:
        """Logs the stacks whenever no Python code can run, until this client is closed."""
        watch = threading.Thread(
            target=standstill.watch_for_silence,
            args=(self._closed,),
            name="elastic-silence",
            daemon=True,
        )
        watch.start()

    def close(self, within_s: float | None = None) -> None:
        """Sends what is queued and stops the heartbeat.

        If there is no master at present, this waits for the next one, which must be told how the
        training ended. It waits `within_s` seconds; if None, as long as this worker waits for
        masters at all.
        """
        self._closed.set()
        self._outbox.put(None)
        self._threads[1].join(timeout=within_s)

    def begin(self, phase: str) -> None:
        """Begins a phase, which heartbeats tell from now on."""
        if phase != self.activity.phase:
            self.activity.phase = phase
            self.hold.begins(phase)

    def post(self, event: messages.Message) -> None:
        """Queues an event; it is sent in order, within milliseconds."""
        self._outbox.put(event)

    def has_delivered(self, within_s: float) -> bool:
        """Waits until all posted events are sent or refused. Returns whether that was in time."""
        reached = threading.Event()
        self._outbox.put(reached)
        return reached.wait(within_s)

    def give_up(self) -> None:
        """Stops waiting for a master."""
        self._gone.set()

    def tell(self, event: protocol.Joined | protocol.Leaving | protocol.Refused) -> None:
        """Sends the master an event, after all posted events and before all later ones.

        Raises:
          MasterUnreachableError: the master did not answer for `master_timeout_s`.
        """
        self.has_delivered(CONNECT_TIMEOUT_S)
        self._ask(self._once(), messages.encode(event))

    def enter(self, request: protocol.EnterRequest) -> protocol.EnterReply:
        """Waits at the entrance of the next round until the master has decided.

        Raises:
          MasterUnreachableError: the master did not answer for `master_timeout_s`.
        """
        while True:
            body = self._ask("enter", messages.encode(request))
            reply = messages.decode(body, protocol.EnterReply)
            if reply.assignment or reply.leave or reply.training_over:
                return self._with_host(reply)

    def _with_host(self, reply: protocol.EnterReply) -> protocol.EnterReply:
        """Adds the host of the store, which is the same as the master's."""
        place = reply.assignment
        if place is None:
            return reply
        rendezvous = self._connection.address.rpartition(":")[0] + place.rendezvous
        place = msgspec.structs.replace(place, rendezvous=rendezvous)
        return msgspec.structs.replace(reply, assignment=place)

    def input_reply(self) -> protocol.InputReply:
        """Asks the master what newcomers need before they join. Call it from one thread only.

        Raises:
          requests.RequestException: the master did not answer.
          messages.ProtocolError: the master answered something else.
        """
        body = self._connection.request(self._asking, "GET", "input")
        return messages.decode(body, protocol.InputReply)

    def claim(self, request: protocol.ClaimRequest) -> protocol.ClaimReply:
        """Asks for a turn to do something that only one worker is to do. From any thread.

        Raises:
          MasterUnreachableError: the master did not answer for `master_timeout_s`.
        """
        with self._connection.session() as session:
            body = self._ask("claim", messages.encode(request), session)
        return messages.decode(body, protocol.ClaimReply)

    def release(self, request: protocol.ReleaseRequest) -> None:
        """Tells the master that the turn is done, or has failed. From any thread.

        Raises:
          MasterUnreachableError: the master did not answer for `master_timeout_s`.
        """
        with self._connection.session() as session:
            self._ask("release", messages.encode(request), session)

    def root(self) -> str:
        """Returns the id of the worker that stands for all at present. From any thread.

        Raises:
          MasterUnreachableError: the master did not answer for `master_timeout_s`.
        """
        with self._connection.session() as session:
            body = self._ask("root", None, session, method="GET")
        return messages.decode(body, protocol.RootReply).worker_id

    def _ask(
        self,
        path: str,
        body: bytes | None,
        session: requests.Session | None = None,
        method: str = "POST",
    ) -> bytes:
        """Sends a request from the user's thread. Repeats it while the master does not answer."""
        repeated = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(requests.RequestException),
            wait=tenacity.wait_fixed(RETRY_S),
            stop=tenacity.stop_after_delay(self._environment.master_timeout_s)
            | tenacity.stop_when_event_set(self._gone),
            sleep=tenacity.sleep_using_event(self._gone),
            reraise=True,
        )
        began = time.monotonic()
        try:
            return repeated(self._connection.request, session or self._entrance, method, path, body)
        except requests.RequestException as error:
            waited_s = time.monotonic() - began
            raise MasterUnreachableError(
                f"The master at {self._connection.address} did not answer for {waited_s:.0f} s: "
                f"{error}. {self._how_to_go_on()}"
            ) from error

    def _poll(self) -> None:
        session = self._connection.session()
        version = 0
        silent_since: float | None = None
        while not self._closed.is_set():
            query = f"updates?worker_id={self.worker_id}&version={version}"
            try:
                update = messages.decode(
                    self._connection.request(session, "GET", query), protocol.WorkerUpdate
                )
            except (requests.RequestException, messages.ProtocolError) as error:
                silent_since = silent_since or time.monotonic()
                if time.monotonic() - silent_since > self._environment.master_timeout_s:
                    self._gone.set()
                    self._on_lost(f"the master does not answer: {error}. {self._how_to_go_on()}")
                    return
                self._closed.wait(RETRY_S)
                continue
            silent_since = None
            if update.version > version:
                version = update.version
                self._on_update(update)

    def _send(self) -> None:
        session = self._connection.session()
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

    def watch(self, communicator: Abortable) -> None:
        """From now on, heartbeats tell whether this worker computes or waits with the others."""
        self._communicator = communicator

    def _heartbeat(self) -> protocol.Heartbeat:
        activity = self.activity
        fields = {f.name: getattr(activity, f.name) for f in dataclasses.fields(activity)}
        communicator = self._communicator
        computing = communicator is not None and communicator.computing()
        waits = communicator is not None and communicator.in_collective
        heartbeat = protocol.Heartbeat(
            worker_id=self.worker_id,
            in_collective=not computing and waits,
            computing=computing,
            cores=round(self._process.cpu_percent() / 100, 2),
            memory_bytes=self._process.memory_info().rss,
            **fields,
        )
        self.standstill.look(heartbeat)
        return heartbeat

    def _deliver(self, session: requests.Session, event: messages.Message) -> None:
        # A heartbeat is not worth a second try: the next one is newer. An event that the master has
        # refused is not sent again: it would be refused again, and would delay heartbeats.
        once = isinstance(event, protocol.Heartbeat)
        repeated = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_is_no_answer),
            wait=tenacity.wait_fixed(RETRY_S),
            stop=(
                tenacity.stop_after_attempt(1)
                if once
                else tenacity.stop_after_delay(self._environment.master_timeout_s)
            )
            | tenacity.stop_when_event_set(self._gone),
            sleep=tenacity.sleep_using_event(self._gone),
            reraise=True,
        )
        body = messages.encode(event)
        try:
            repeated(self._connection.request, session, "POST", self._once(), body)
        except requests.HTTPError as error:
            kind = type(event).__name__
            log.warning("the master refuses a %s of %d bytes: %s", kind, len(body), error)
        except requests.RequestException:
            if not once:
                self._gone.set()

    def _once(self) -> str:
        """Returns the path for one message.

        The number in it makes a message count only once, even if it is sent again.
        """
        return f"events?number={next(self._numbers)}"

    def _how_to_go_on(self) -> str:
        job_dir = self._environment.job_dir
        return f"To go on: python -m hvd_elastic_keras.run --resume --job_dir={job_dir}"


def _is_no_answer(error: BaseException) -> bool:
    return isinstance(error, requests.RequestException) and not isinstance(
        error, requests.HTTPError
    )
