"""The membership of a worker of a job."""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import threading
from collections.abc import Callable
from typing import ClassVar, NoReturn

import requests

from hvd_elastic_keras.common import messages, protocol
from hvd_elastic_keras.common.errors import (
    ExpelledError,
    LeavingAloneError,
    MasterUnreachableError,
    TrainingOverError,
    WorkerLeavingError,
)
from hvd_elastic_keras.settings.env import WorkerEnvironment
from hvd_elastic_keras.worker import end_process
from hvd_elastic_keras.worker.abortable import Abortable
from hvd_elastic_keras.worker.client import MasterClient
from hvd_elastic_keras.worker.reporter import MasterReporter, Reporter
from hvd_elastic_keras.worker.session import EntryReport

ABORT_AGAIN_S = 0.02
MAX_ABORTS = 3000
WITHOUT_WORK_S = 5.0
"""How long a worker that is not warm yet tries to tell the master that it leaves."""
LEAVE_ALONE_S = 10.0
"""How long a worker tries to tell a master of its SIGTERM before it leaves without a master."""

log = logging.getLogger(__name__)


class ElasticSession:
    """Membership in a job. Call `start` as early as possible: it needs no TensorFlow.

    Attributes:
      current: the session of this process that was started last.
      place: place in the newest round of the present training; None outside of trainings.
      in_training: whether the training last begun is neither finished nor over.
    """

    current: ClassVar[ElasticSession | None] = None

    def __init__(self, environment: WorkerEnvironment) -> None:
        self._environment = environment
        self._client = MasterClient(environment, self._on_update, self._on_lost)
        self.place: protocol.Assignment | None = None
        self.in_training = False
        self._communicator: Abortable | None = None
        self._update = protocol.WorkerUpdate(version=0)
        self._asks_to_leave = ""
        """Why this worker has asked the master to let it leave; empty if it has not asked."""
        self._lost: MasterUnreachableError | LeavingAloneError | None = None
        """Set when this worker leaves without a master."""
        self._reporter = MasterReporter(self._client, self._training_told)
        self._changed: Callable[[], None] = lambda: None

    @property
    def training(self) -> int:
        """Number of the training last begun by this process; 0 before the first."""
        return self._client.activity.training

    @property
    def reporter(self) -> Reporter:
        """Reports to the master."""
        return self._reporter

    def _training_told(self) -> int:
        """A notice before `join` belongs to the training that this worker prepares."""
        return self.training + (0 if self.in_training else 1)

    @property
    def worker_id(self) -> str:
        """Identity of this process in the job."""
        return self._client.worker_id

    @property
    def term(self) -> Callable[[], int]:
        """Function that returns the term of the newest master that has answered."""
        return lambda: self._client.term

    @property
    def client(self) -> MasterClient:
        """The connection to the master."""
        return self._client

    @property
    def progress(self) -> int:
        """Atomic steps that led to the present state of the training; 0 outside of trainings."""
        return self._client.activity.progress if self.in_training else 0

    def start(self) -> None:
        """Connects to the master and makes SIGTERM mean "leave after the current step"."""
        if self._environment.keeper_pid is not None:
            end_process.hear_of_keepers_death(self._environment.keeper_pid)
            self._client.watch_silence()
        self._client.start()
        self._watch_sigterm()
        ElasticSession.current = self

    def join(
        self,
        communicator: Abortable,
        num_micro_batches: int,
        warm_up_s: float,
        each: bool = False,
    ) -> None:
        """Begins the next training and tells the master that this worker is warm."""
        self._communicator = communicator
        self._client.watch(communicator)
        self.place, self.in_training = None, True
        activity = self._client.activity
        self._client.begin("waiting")
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
        self._client.begin("waiting")
        reply = self._enter(
            protocol.EnterRequest(
                worker_id=self.worker_id,
                training=activity.training,
                from_round=activity.round,
                **dataclasses.asdict(report),
            )
        )
        if reply.training_over:
            activity.phase = "done"
            self.place, self.in_training = None, False
            raise TrainingOverError(
                f"Training {activity.training} of this job was finished without this worker."
            )
        if reply.assignment is None:
            expelled = reply.leave == protocol.NO_WORKER
            raise (ExpelledError if expelled else WorkerLeavingError)(reply.leave)
        self.place = reply.assignment
        activity.round = reply.assignment.round
        self._client.begin("entering")
        if self._update.broken_through >= activity.round:
            self._abort(self._update.broken_through)
        return reply.assignment

    def _enter(self, request: protocol.EnterRequest) -> protocol.EnterReply:
        if self._lost:
            raise self._lost
        try:
            return self._client.enter(request)
        except MasterUnreachableError as error:
            raise self._lost or error from error

    def running(self, step: int, phase: str) -> None:
        """Confirms to the master that this worker trains, or evaluates, in its round."""
        number = self._client.activity.round
        self._client.post(
            protocol.Running(worker_id=self.worker_id, round=number, step=step, phase=phase)
        )

    def others_read(self, training: int) -> protocol.InputPosition | None:
        """Returns where other workers of this training read; None also if no master answers."""
        position = self._others().position
        return position if position and position.training == training else None

    def others_train(self, training: int) -> bool:
        """Whether other workers are in this training already; False if no master answers."""
        return self._others().training == training

    @property
    def is_only_worker(self) -> bool:
        """Whether the job has no other worker at present; True also if no master answers."""
        return self._others().workers <= 1

    def _others(self) -> protocol.InputReply:
        try:
            return self._client.input_reply()
        except (requests.RequestException, messages.ProtocolError) as error:
            log.info("the master does not say where the others are: %s", error)
            return protocol.InputReply()

    @property
    def leaving(self) -> bool:
        """Whether this worker has to leave: alone, with all workers, or without a master."""
        return bool(self._lost or self._update.stop or self._update.leave)

    @property
    def change_pending(self) -> bool:
        """Whether all workers have to leave the round after the current step."""
        return self.leaving or self._update.pending_through >= self._client.activity.round

    def on_change(self, call: Callable[[], None]) -> None:
        """Sets a function to call in a background thread when `change_pending` may have changed."""
        self._changed = call

    def finish(self, *, raised: bool = False) -> None:
        """Tells the master that this training is done."""
        self.place, self.in_training = None, False
        activity = self._client.activity
        activity.phase = "done"
        done = protocol.Done(
            worker_id=self.worker_id,
            training=activity.training,
            step=activity.step,
            raised=raised,
        )
        self._client.post(done)

    def refuse(self, message: str) -> None:
        """Tells the master of a wrong configuration. The process has to end after this."""
        try:
            step = self._client.activity.step
            self._client.tell(
                protocol.Refused(worker_id=self.worker_id, message=message, step=step)
            )
        except MasterUnreachableError as error:
            log.error("%s", error)

    def leave(self, why: str) -> NoReturn:
        """Leaves the job before this worker has begun to train, and tells people why.

        Raises:
          WorkerLeavingError: always.
        """
        self.reporter.tell(f"warning: {why}: {self.worker_id} leaves, and the others train on")
        self._client.tell(protocol.Leaving(worker_id=self.worker_id, reason=why))
        raise WorkerLeavingError(why)

    def close(self) -> None:
        """Sends what is queued and disconnects."""
        self._client.close(WITHOUT_WORK_S if self._lost else None)

    # --- background threads --------------------------------------------------------------

    def _on_update(self, update: protocol.WorkerUpdate) -> None:
        before, self._update = self._update, update
        if update.stalled and not before.stalled:
            self._client.standstill.others_wait()
        self._changed()
        if update.broken_through > before.broken_through:
            self._abort(update.broken_through)
        if self._asks_to_leave and not self.leaving:
            # A master whose journal has lost the request does not know of it.
            self._tell_of_leaving()

    def _on_lost(self, reason: str) -> None:
        log.error("%s", reason)
        self._leave_alone(MasterUnreachableError(f"This worker leaves: {reason}."))

    def _leave_alone(self, why: MasterUnreachableError | LeavingAloneError) -> None:
        """Leaves after the current step, without a master."""
        if self._lost is None:
            # Nothing else would ever end a worker whose own code hangs.
            end_process.if_it_does_not_leave()
        self._lost = why
        self._client.give_up()
        self._changed()

    def _abort(self, through_round: int) -> None:
        """Ends blocked collectives, repeatedly while `hvd.init()` opens new sockets."""

        def work() -> None:
            for _ in range(MAX_ABORTS):
                communicator = self._communicator
                if communicator is None or not communicator.abort(through_round):
                    return
                threading.Event().wait(ABORT_AGAIN_S)

        threading.Thread(target=work, name="elastic-abort", daemon=True).start()

    def _watch_sigterm(self) -> None:
        """Receives SIGTERM in a thread, because the main thread may be inside a long step."""
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
        keeper_pid = self._environment.keeper_pid
        is_kept = keeper_pid is None or os.getppid() == keeper_pid
        if is_kept or self._environment.joined:
            self._ask_to_leave("SIGTERM" if is_kept else "its joiner was killed")
            return
        self._on_lost("its keeper is gone")
        if self._communicator is None:
            end_process.at_once(0)

    def _tell_of_leaving(self) -> None:
        reason = self._asks_to_leave
        self._client.post(protocol.Leaving(worker_id=self.worker_id, reason=reason))

    def _ask_to_leave(self, reason: str) -> None:
        """Leaves when the master says so, or by itself if no master receives the request."""
        self._asks_to_leave = reason
        self._tell_of_leaving()
        if self._communicator is None:
            # Not warm yet: no other worker waits for this one.
            if self._client.has_delivered(WITHOUT_WORK_S):
                end_process.at_once(0)
            end_process.by_sigterm()
        elif not self._client.has_delivered(LEAVE_ALONE_S):
            log.error("%s, and no launcher hears of it: leaving after the current step", reason)
            self._leave_alone(LeavingAloneError(f"{reason}, without a launcher"))
