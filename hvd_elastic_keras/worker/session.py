"""A worker's membership: join, enter a round, learn of changes, leave.

`Session` is what training needs to know of it. `SoloSession` is the world of a process that was
started without a launcher; `ElasticSession` that of a member of a job.

A process may train several times, each time with `join`, `enter` (once per round) and `finish`. All
processes of a job run the same script, so that their trainings correspond by number. One that comes
too late for a training, because it is new or was slow, is told so by `TrainingOverError`.
"""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
import functools
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

import msgspec
import requests

from hvd_elastic_keras import env, protocol
from hvd_elastic_keras.env import WorkerEnvironment
from hvd_elastic_keras.errors import (
    ConfigurationError,
    MasterUnreachableError,
    TrainingOverError,
    WorkerLeavingError,
)
from hvd_elastic_keras.worker import one_line_errors
from hvd_elastic_keras.worker.client import MasterClient

ABORT_AGAIN_S = 0.02
MAX_ABORTS = 3000
PR_SET_PDEATHSIG = 1

log = logging.getLogger(__name__)


class Abortable(Protocol):
    """The part of the communicator that a session uses."""

    def abort(self, through_round: int) -> bool:
        """Makes collectives of old rounds fail; returns whether to call again."""


class Session(Protocol):
    """What training needs to know of membership."""

    @property
    def training(self) -> int:
        """Number of the training that this process has last begun; 0 before the first."""

    @property
    def finished(self) -> bool:
        """Whether this process has trained the training it has last begun to its end."""

    def join(
        self,
        communicator: Abortable,
        num_micro_batches: int,
        warm_up_s: float,
        each: bool = False,
    ) -> None:
        """Begins the next training of this process and tells the master that it is warm.

        `num_micro_batches` is the largest useful number of workers; 0 means any number. If `each`,
        every worker computes so many, and any number is of use.
        """

    def enter(self, report: EntryReport) -> protocol.Assignment:
        """Waits for a place in the next round.

        Raises:
          TrainingOverError: the job has finished this training already.
          WorkerLeavingError: this worker has to leave instead.
          MasterUnreachableError: there is no master any more.
        """

    def running(self, step: int) -> None:
        """Tells the master that training goes on."""

    def at(self, phase: str, step: int, progress: int) -> None:
        """Notes the position for the heartbeat."""

    def reading(self, position: protocol.InputPosition) -> None:
        """Notes which batch the next step takes, where batches can only be read from the front."""

    def others_read(self, training: int) -> protocol.InputPosition | None:
        """Where others read who are in this training; None if there are none.

        To be called from one thread only.
        """

    @property
    def leaving(self) -> bool:
        """Whether this worker has to leave the job."""

    @property
    def change_pending(self) -> bool:
        """Whether everybody has to leave the round after the current step."""

    def on_change(self, call: Callable[[], None]) -> None:
        """Asks for a call, in a background thread, whenever `change_pending` may have changed."""

    def show(self, text: str) -> None:
        """Shows text of rank 0 on the terminal of the launcher."""

    def record(self, event: str, **fields: object) -> None:
        """Adds an entry to the job's `events.jsonl`."""

    def finish(self) -> None:
        """Tells the master that this training is done: after the last barrier with all members."""

    def refuse(self, message: str) -> None:
        """Tells the master, just before this process ends, what is configured wrongly.

        The job ends with this message; nobody is started again.
        """


@dataclasses.dataclass(frozen=True)
class EntryReport:
    """The committed state with which a worker asks for a place; see `protocol.EnterRequest`."""

    has_state: bool
    progress: int
    step: int
    failure: str = ""
    idle_s: float = 0.0


class SoloSession:
    """One process, no master: the only round never changes."""

    leaving = False
    change_pending = False

    def __init__(self) -> None:
        self._training = 0
        self._finished = False

    @property
    def training(self) -> int:
        """Number of the training that this process has last begun; 0 before the first."""
        return self._training

    @property
    def finished(self) -> bool:
        """Whether the training that was last begun has been finished."""
        return self._finished

    def join(
        self,
        communicator: Abortable,
        num_micro_batches: int,
        warm_up_s: float,
        each: bool = False,
    ) -> None:
        """Begins the next training. Nobody to tell."""
        self._training += 1
        self._finished = False

    def enter(self, report: EntryReport) -> protocol.Assignment:
        """The place of a process that is alone in the world."""
        return msgspec.structs.replace(protocol.ALONE, root_has_state=report.has_state)

    def running(self, step: int) -> None:
        """Nobody to tell."""

    def at(self, phase: str, step: int, progress: int) -> None:
        """Nobody to tell."""

    def on_change(self, call: Callable[[], None]) -> None:
        """Nothing ever changes."""

    def reading(self, position: protocol.InputPosition) -> None:
        """Nobody to tell."""

    def others_read(self, training: int) -> None:
        """There are no others."""

    def show(self, text: str) -> None:
        """Writes to this process's own terminal."""
        print(text, end="", flush=True)

    def record(self, event: str, **fields: object) -> None:
        """There is no event log without a job."""

    def finish(self) -> None:
        """Ends the training. Nobody to tell."""
        self._finished = True

    def refuse(self, message: str) -> None:
        """Nobody to tell."""


class ElasticSession:
    """Membership in a job. `start` as early as possible: it needs no TensorFlow."""

    def __init__(self, environment: WorkerEnvironment) -> None:
        self._environment = environment
        self._client = MasterClient(environment, self._on_update, self._on_lost)
        self._communicator: Abortable | None = None
        self._update = protocol.WorkerUpdate(version=0)
        self._lost = ""
        self._changed: Callable[[], None] = _nothing
        self._finished = False

    @property
    def training(self) -> int:
        """Number of the training that this process has last begun; 0 before the first."""
        return self._client.activity.training

    @property
    def finished(self) -> bool:
        """Whether this process has trained the training it has last begun to its end."""
        return self._finished

    @property
    def worker_id(self) -> str:
        """Identity of this process in the job."""
        return self._client.worker_id

    def start(self) -> None:
        """Connects to the master and makes SIGTERM mean "leave after the current step"."""
        self._die_with_launcher()
        self._client.start()
        self._watch_sigterm()

    def join(
        self,
        communicator: Abortable,
        num_micro_batches: int,
        warm_up_s: float,
        each: bool = False,
    ) -> None:
        """Begins the next training and tells the master that this worker is warm."""
        self._communicator = communicator
        self._finished = False
        activity = self._client.activity
        activity.phase = "waiting"
        # The number comes last: a heartbeat must not carry old steps into the new training.
        activity.step = activity.progress = 0
        activity.reading = None
        activity.training += 1
        self._client.tell(
            protocol.Joined(
                worker_id=self.worker_id,
                training=activity.training,
                pid=os.getpid(),
                num_micro_batches=num_micro_batches,
                each=each,
                warm_up_s=warm_up_s,
            )
        )

    def enter(self, report: EntryReport) -> protocol.Assignment:
        """Waits for a place in the next round."""
        activity = self._client.activity
        activity.phase = "waiting"
        if self._lost:
            raise MasterUnreachableError(f"This worker leaves: {self._lost}.")
        reply = self._client.enter(
            protocol.EnterRequest(
                worker_id=self.worker_id,
                training=activity.training,
                from_round=activity.round,
                **dataclasses.asdict(report),
            )
        )
        if reply.training_over:
            activity.phase = "done"
            raise TrainingOverError(
                f"Training {activity.training} of this job was finished without this worker."
            )
        if reply.assignment is None:
            raise WorkerLeavingError(reply.leave, reply.job_stops)
        activity.round = reply.assignment.round
        activity.phase = "entering"
        if self._update.broken_through >= activity.round:
            self._abort(self._update.broken_through)
        return reply.assignment

    def running(self, step: int) -> None:
        """Tells the master that training goes on."""
        round_number = self._client.activity.round
        self._client.post(protocol.Running(worker_id=self.worker_id, round=round_number, step=step))

    def at(self, phase: str, step: int, progress: int) -> None:
        """Notes the position for the heartbeat."""
        activity = self._client.activity
        activity.phase, activity.step, activity.progress = phase, step, progress

    def reading(self, position: protocol.InputPosition) -> None:
        """Notes which batch the next step takes, for the heartbeat."""
        self._client.activity.reading = position

    def others_read(self, training: int) -> protocol.InputPosition | None:
        """Where others read who are in this training; None also if the master does not answer."""
        try:
            position = self._client.input_position()
        except (requests.RequestException, protocol.ProtocolError) as error:
            log.info("nobody says where the others read: %s", error)
            return None
        return position if position and position.training == training else None

    @property
    def leaving(self) -> bool:
        """Whether this worker has to leave the job: alone, with everybody, or without a master."""
        return bool(self._lost or self._update.stop or self._update.leave)

    @property
    def change_pending(self) -> bool:
        """Whether everybody has to leave the round after the current step."""
        return self.leaving or self._update.pending_through >= self._client.activity.round

    def on_change(self, call: Callable[[], None]) -> None:
        """Asks for a call, in a background thread, whenever `change_pending` may have changed."""
        self._changed = call

    def show(self, text: str) -> None:
        """Shows text on the terminal of the launcher."""
        self._client.post(protocol.Console(worker_id=self.worker_id, text=text))

    def record(self, event: str, **fields: object) -> None:
        """Adds an entry to the job's `events.jsonl`."""
        self._client.post(
            protocol.Record(
                worker_id=self.worker_id, training=self.training, event=event, fields=fields
            )
        )

    def finish(self) -> None:
        """Tells the master that this training is done."""
        self._finished = True
        activity = self._client.activity
        activity.phase = "done"
        self._client.post(
            protocol.Done(worker_id=self.worker_id, training=activity.training, step=activity.step)
        )

    def refuse(self, message: str) -> None:
        """Tells the master what is configured wrongly. The process is to end after this."""
        try:
            step = self._client.activity.step
            self._client.tell(
                protocol.Refused(worker_id=self.worker_id, message=message, step=step)
            )
        except MasterUnreachableError as error:
            log.error("%s", error)

    def close(self) -> None:
        """Sends what is queued and disconnects."""
        self._client.close()

    # --- background threads --------------------------------------------------------------

    def _on_update(self, update: protocol.WorkerUpdate) -> None:
        broken_before = self._update.broken_through
        self._update = update
        self._changed()
        if update.broken_through > broken_before:
            self._abort(update.broken_through)

    def _on_lost(self, reason: str) -> None:
        log.error("%s", reason)
        self._lost = reason
        self._changed()

    def _abort(self, through_round: int) -> None:
        """Ends blocked collectives, again and again while `hvd.init()` opens new sockets."""

        def work() -> None:
            for _ in range(MAX_ABORTS):
                communicator = self._communicator
                if communicator is None or not communicator.abort(through_round):
                    return
                threading.Event().wait(ABORT_AGAIN_S)

        threading.Thread(target=work, name="elastic-abort", daemon=True).start()

    def _die_with_launcher(self) -> None:
        """Lets the kernel send SIGTERM to this process when a local launcher is killed."""
        launcher_pid = self._environment.launcher_pid
        if launcher_pid is None:
            return
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != launcher_pid:
            raise MasterUnreachableError("The launcher was gone before this worker started.")

    def _watch_sigterm(self) -> None:
        """Hears of SIGTERM in a thread: the main thread may be inside a step for long."""
        if threading.current_thread() is not threading.main_thread():
            log.warning("not in the main thread: SIGTERM will end this worker at once")
            return
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda _number, _frame: None)

        def watch() -> None:
            while data := os.read(read_end, 1):
                if data[0] == signal.SIGTERM:
                    self._on_sigterm()

        threading.Thread(target=watch, name="elastic-sigterm", daemon=True).start()

    def _on_sigterm(self) -> None:
        launcher_pid = self._environment.launcher_pid
        if launcher_pid is not None and os.getppid() != launcher_pid:
            self._on_lost("the launcher is gone")
        else:
            self._client.post(protocol.Leaving(worker_id=self.worker_id, reason="SIGTERM"))
        if self._communicator is None:
            # Not warm yet: nobody waits for this worker.
            self._client.close()
            os._exit(0)


def _nothing() -> None:
    return None


@functools.lru_cache(maxsize=1)
def session_of_process(environment: WorkerEnvironment) -> ElasticSession:
    """The session of a script started by a launcher: one, however many `Trainer`s it makes."""
    refuse_what_is_not_caught(environment)
    atexit.register(env.remove_scratch)  # the first to be registered is the last to be called
    session = ElasticSession(environment)
    session.start()
    # A script may end right after `fit`: the master must hear that it is done.
    atexit.register(session.close)
    return session


@functools.lru_cache(maxsize=1)
def refuse_what_is_not_caught(environment: WorkerEnvironment) -> None:
    """Lets the job end with a `ConfigurationError` with which the user's script ends.

    It may do so before anything else has needed a session.
    """
    one_line_errors.install()
    show = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        show(kind, error, trace)
        # A process that the script has started does not speak for the worker.
        is_worker = environment.launcher_pid in (None, os.getppid())
        if isinstance(error, ConfigurationError) and is_worker:
            session_of_process(environment).refuse(str(error))

    sys.excepthook = hook
