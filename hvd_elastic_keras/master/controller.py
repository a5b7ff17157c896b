"""The master's loop: feeds events to the state machine and carries out what it decides."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from pathlib import Path
from typing import Any

import msgspec

from hvd_elastic_keras.common import control, events, files, protocol
from hvd_elastic_keras.launchers.base import (
    LOCALHOST,
    ON_THIS_HOST,
    Launcher,
    WorkerExit,
    WorkerStart,
)
from hvd_elastic_keras.launchers.by_host import ByHost
from hvd_elastic_keras.master import awake_clock
from hvd_elastic_keras.master.awake_clock import AwakeClock
from hvd_elastic_keras.master.context import ChangeSignal
from hvd_elastic_keras.master.due_actions import DueActions
from hvd_elastic_keras.master.http import certificate
from hvd_elastic_keras.master.http.server import MasterServer
from hvd_elastic_keras.master.job_end import JobResult, Stopping, clear_away, concluded
from hvd_elastic_keras.master.join_handler import ChangeHandler, JoinHandler
from hvd_elastic_keras.master.journal import Term
from hvd_elastic_keras.master.life_watch import LifeWatch
from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.decide import decide
from hvd_elastic_keras.master.machine.decisions import (
    Decisions,
    decisions_of,
    restored,
    spent_before,
)
from hvd_elastic_keras.master.machine.state import State
from hvd_elastic_keras.master.machine.status import job_status
from hvd_elastic_keras.master.shown_output import NOBODY, Audience, ShownOutput
from hvd_elastic_keras.master.worker_handler import WorkerHandler
from hvd_elastic_keras.observe import output
from hvd_elastic_keras.observe.console import Console
from hvd_elastic_keras.observe.event_log import EventLog
from hvd_elastic_keras.settings.job_config import JobConfig

log = logging.getLogger(__name__)
TICK_S = 0.25
DAMAGED_JOURNAL = (
    "warning: the end of the journal cannot be read: the last decisions of the launcher before "
    "are lost. The workers form another round, and no step is lost; a request that was "
    "answered just before (ctl) may have to be made again"
)


class Controller:
    """Runs one job on one event loop.

    Args:
      token: the job's secret, if its workers know one already; empty creates one.
      description: what joiners have to know of the job.
      start: how workers start.
      audience: listeners to the job.
    """

    def __init__(
        self,
        config: JobConfig,
        job_dir: Path,
        console: Console,
        term: Term,
        *,
        token: str = "",
        description: control.JobDescription | None = None,
        start: WorkerStart = ON_THIS_HOST,
        audience: Audience = NOBODY,
    ) -> None:
        self.token = token or secrets.token_hex(control.TOKEN_BYTES)
        self._term = term
        self.config = config
        self.job_dir = job_dir
        self.console = console
        self.events = EventLog(job_dir / files.EVENTS, tuple(audience.listeners))
        extensions = [make(self) for make in audience.extended_by]
        self._server = MasterServer(self, self.token, term.number, extensions)
        spent = spent_before(term.left, time.time())
        self._state = State(
            next_worker_number=start.first_number, slots={start.host: 0}, spent=spent
        )
        self._shown = ShownOutput(audience.all_output)
        self.changed = ChangeSignal()
        self.workers = WorkerHandler(self)
        self.joiners = JoinHandler(self, description)
        self._changes = ChangeHandler(self)
        self._launcher: ByHost | None = None
        self._prepared = start.prepared
        self._life = LifeWatch(config, self.dispatch)
        self._now = AwakeClock(lambda gap_s: console.line(awake_clock.told(gap_s)))
        self._tasks: set[asyncio.Task[None]] = set()
        self._due = DueActions(self.keep, self._execute, self.changed.tell)
        self._end: asyncio.Future[act.EndJob] = asyncio.get_running_loop().create_future()
        self._stopping = Stopping(self._end, config.stop_grace_s, self.dispatch, console.line)

    @property
    def address(self) -> str:
        """host:port of the HTTP endpoint."""
        return self._server.address

    @property
    def state(self) -> State:
        """The state decided so far."""
        return self._state

    def now(self) -> float:
        """Returns the time by the clock of the state machine."""
        return self._now()

    async def start(
        self, host: str, port: int = 0, fingerprint: str = "", given_out: str = ""
    ) -> None:
        """Opens the HTTP endpoint and writes `master.json` for `ctl` (mode 0600).

        If `port` is 0 or taken, a free port is used. With a `fingerprint`, the endpoint speaks TLS.
        `given_out` is the address by which workers reach this host, if it is not `host`.
        """
        tls = certificate.context_of(self.job_dir) if fingerprint else None
        await self._server.start(host, port, tls, given_out)
        files.write_endpoint(self.job_dir, self.address, self.token, fingerprint)

    async def run(
        self,
        local: Launcher,
        model: str = "",
        training: dict[str, Any] | None = None,
        remote: Launcher | None = None,
    ) -> JobResult:
        """Starts or takes over the workers; returns when the job has ended and they are gone.

        `model` and `training` describe the training in `events.jsonl`. `local` starts workers on
        this machine, `remote` on others.
        """
        self._launcher = launcher = ByHost(local, self.joiners.joined, remote)
        ticker = asyncio.create_task(self._tick())
        ticker.add_done_callback(self._on_tick_error)
        try:
            if self._term.before:
                self._go_on(self._term.before, launcher)
            else:
                self._begin(model, training or {})
            end = await self._end
            self.changed.tell()
            told = {w.worker_id for w in self._state.workers.values() if w.ready_at is not None}
            told.update(self.joiners.joined.running())
            awaited = launcher.running()
            grace_s = self.config.stop_grace_s
            await clear_away(launcher, told, grace_s, lambda: self._stopping.is_at_once)
            self.joiners.tell_of_those_left(awaited)
            self._due.end()
            result = self._finish(end)
            if result.refused and not result.has_trained:
                self._term.give_back()
            return result
        finally:
            ticker.cancel()
            self.kill_workers()
            await self._server.stop()
            files.remove_endpoint(self.job_dir)
            launcher.close()
            self._term.close()
            self.events.close()

    def _begin(self, model: str, training: dict[str, Any]) -> None:
        count, term, where = self.config.num_workers, self._term.number, str(self.job_dir)
        started = events.JobStarted(
            job_dir=where, model=model, num_workers=count, training=training, term=term
        )
        self.events.write(started)
        if count:
            self.dispatch(act.AddWorkers(count))

    def _go_on(self, before: Decisions, launcher: ByHost) -> None:
        """Takes over the workers of the previous master; they have kept training."""
        away_s, lost = before.away_s(time.time()), self._term.most_lost
        self._state, actions = restored(
            self.config,
            before,
            self._now(),
            away_s=away_s,
            most_lost=lost,
            unused_number=self._state.next_worker_number,
        )
        self.workers.claims.known = before.claims
        self._changes.restore(before.answers)
        launched = [w.worker_id for w in self._state.workers.values() if not w.by_itself]
        found = {w: launcher.adopt(w, self.on_exit) for w in launched}
        for worker in self._state.workers.values():
            if worker.by_itself or worker.host != LOCALHOST:
                self.joiners.adopt(worker.worker_id, worker.host)
        if lost:
            self.console.line(DAMAGED_JOURNAL)
        here = [w for w in self._state.workers if w in launcher.running()]
        self.events.write(events.MasterRestarted(term=self._term.number, workers=here))
        self.console.line(
            f"the launcher is back (term {self._term.number}); taken over: {', '.join(here)}"
        )
        self.keep()
        self._due.execute(actions)
        if before.state.stop:
            self._stopping.limit(before.state.stop)
        for worker_id, process in found.items():
            if process is None:
                self._due.execute([act.Launch(worker_id, self._state.workers[worker_id].host, 0.0)])
            elif self._state.workers[worker_id].pid is None:
                self.dispatch(act.Started(worker_id, process.host, process.pid))

    def kill_workers(self) -> None:
        """Kills all running workers."""
        if launcher := self._launcher:
            for worker_id in launcher.running():
                launcher.kill(worker_id)

    def stop(self, reason: str) -> None:
        """Ends the job after the current step; a second call ends it at once."""
        self._stopping.on_signal(reason)

    def _finish(self, end: act.EndJob) -> JobResult:
        recorded = self.workers.recorded.newest_step(self._state.training.number)
        stopped = self._stopping.is_requested
        result, entry = concluded(self._state, end, stopped, recorded, self._now())
        self.events.write(entry)
        return result

    # --- events and actions --------------------------------------------------------------

    def dispatch(self, *events: act.Event) -> None:
        """Applies events. The actions are carried out shortly afterwards, in order."""
        for event in events:
            before = self._state
            self._state, actions = decide(self.config, before, event, self._now())
            self._due.add(before, self._state, actions)

    def dispatch_command(self, *events: act.Event) -> None:
        """As `dispatch`; the decisions are written down also if the events change nothing."""
        self._due.add_decision()  # the answer to the command is kept, too
        self.dispatch(*events)

    async def kept(self) -> None:
        """Returns when all decisions so far are on disk."""
        await self._due.kept()

    def keep(self) -> None:
        """Writes the decisions to the journal, before anybody hears of them."""
        claims, answers = self.workers.claims.known, self._changes.answers
        self._term.keep(decisions_of(self._state, claims, answers, time.time()))

    def _execute(self, action: act.Action) -> None:
        match action:
            case act.Emit():
                self.events.write(action.entry)
            case act.Say():
                self.console.line(action.text)
            case act.Reply():
                self._reply(action)
            case act.CloseRendezvous():
                self._server.rendezvous.close(action.round)
            case act.Launch():
                task = asyncio.create_task(self._launch(action))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case act.Kill() if self._launcher:
                self._launcher.kill(action.worker_id)
            case act.EndJob() if not self._end.done():
                self.joiners.end = action
                self._end.set_result(action)

    def _reply(self, action: act.Reply) -> None:
        reply = action.reply
        if reply.assignment:
            rendezvous = self._server.rendezvous_of(reply.assignment.round)
            place = msgspec.structs.replace(reply.assignment, rendezvous=rendezvous)
            if not place.root_has_state:
                self.workers.claims.forget(self._state.training.number)
            reply = protocol.EnterReply(assignment=place)
        self.workers.entrance.answer(action.worker_id, reply, action.training)

    async def _launch(self, action: act.Launch) -> None:
        await asyncio.sleep(action.delay_s)
        if self._prepared and action.host == LOCALHOST:
            await self._prepared()
        worker = self._state.workers.get(action.worker_id)
        if self._launcher is None or self._state.stop or worker is None or worker.leaving:
            self.dispatch(act.LaunchCancelled(action.worker_id))
            return
        try:
            process = self._launcher.launch(action.worker_id, action.host, self.on_exit)
        except Exception as error:  # of any kind: otherwise the place would stay empty
            log.debug("%s was not started", action.worker_id, exc_info=True)
            self.dispatch(act.LaunchFailed(action.worker_id, str(error) or repr(error)))
            return
        self.dispatch(act.Started(action.worker_id, process.host, process.pid))

    def on_output(self, worker_id: str, line: str) -> None:
        """Shows a line that a worker has printed, if the output of this worker is shown."""
        if self._shown.shows(self._state, worker_id):
            self.console.worker_line(worker_id, line)

    def on_exit(self, event: WorkerExit) -> None:
        """Handles the end of a worker's process."""
        self._shown.note_exit(self._state, event)
        self.workers.entrance.gone(event.worker_id)
        self.dispatch(event)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._life.look(self._state, self._now())
            self.dispatch(act.Tick())
            if self._term.trouble:
                self._due.add_decision()  # there may be room for the journal by now

    def _on_tick_error(self, ticker: asyncio.Task[None]) -> None:
        if not ticker.cancelled() and ticker.exception() and not self._end.done():
            self._end.set_exception(ticker.exception() or RuntimeError())

    # --- what the server calls -----------------------------------------------------------

    def status(self) -> control.JobStatus:
        """Returns the present state, for people."""
        warnings = tuple(filter(None, (self._term.trouble, *output.troubles())))
        return job_status(self.config, self._state, self._now(), warnings)

    def change_workers(self, request: control.ChangeRequest) -> control.ChangeReply:
        """Adds or removes workers, or says why not."""
        return self._changes.change_workers(request)

    def change_slots(self, request: control.SlotsRequest) -> control.SlotsReply:
        """Grants or revokes slots, or says why not."""
        return self._changes.change_slots(request)

    def stop_job(self, request: control.StopRequest) -> control.ChangeReply:
        """Stops the job after the current step. Unlike `stop`, it never ends the job at once."""
        if self._stopping.is_requested:
            return control.ChangeReply(accepted=True, text="The job is stopping already.")
        self._stopping.after_step(request.reason)
        self.console.line(f"{request.reason}: stopping after the current step")
        text = "The job stops after the current step. `run --resume --job_dir=…` goes on with it."
        return control.ChangeReply(accepted=True, text=text)
