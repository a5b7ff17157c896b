"""The master's loop: feeds events to the state machine and carries out what it decides."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
import time
from pathlib import Path
from typing import Any

import msgspec

from hvd_elastic_keras import files, protocol
from hvd_elastic_keras.config import JobConfig
from hvd_elastic_keras.console import Console
from hvd_elastic_keras.launchers.base import Launcher
from hvd_elastic_keras.master import actions as act
from hvd_elastic_keras.master.change_request import plan_change, plan_slots
from hvd_elastic_keras.master.event_log import EventLog
from hvd_elastic_keras.master.membership import decide
from hvd_elastic_keras.master.server import MasterServer, wait_for_newer
from hvd_elastic_keras.master.state import State, reading_of, update_for
from hvd_elastic_keras.master.status import job_status

TICK_S = 0.25


@dataclasses.dataclass(frozen=True)
class JobResult:
    """How a job ended."""

    succeeded: bool
    stopped: bool
    """Ended early because somebody asked for it."""
    reason: str
    step: int
    last_failed_worker: str
    """Whose log tells most about a failure; empty if no worker has failed."""
    training: int = 1
    """The last training; `step` counts in it."""
    refused: bool = False
    """Whether `reason` is what a worker found to be configured wrongly."""


class Controller:
    """Runs one job on one event loop."""

    def __init__(
        self, config: JobConfig, job_dir: Path, console: Console, first_worker_number: int = 0
    ) -> None:
        self.token = secrets.token_hex(16)
        self._config = config
        self._job_dir = job_dir
        self._console = console
        self._events = EventLog(job_dir / files.EVENTS)
        self._server = MasterServer(self, self.token)
        self._state = State(next_worker_number=first_worker_number)
        self._changed = asyncio.Condition()
        self._waiting: dict[str, asyncio.Future[protocol.EnterReply]] = {}
        self._replies: dict[str, protocol.EnterReply] = {}
        self._launcher: Launcher | None = None
        self._stop_requested = False
        self._at_once = False
        self._recorded = (0, 0)
        """The newest step that rank 0 has recorded, as (training, step)."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._end: asyncio.Future[act.EndJob] = asyncio.get_running_loop().create_future()

    @property
    def address(self) -> str:
        """host:port of the HTTP endpoint."""
        return self._server.address

    async def start(self, host: str) -> None:
        """Opens the HTTP endpoint and writes `master.json` for `ctl` (mode 0600)."""
        await self._server.start(host)
        files.write_endpoint(self._job_dir, self.address, self.token)

    async def run(self, launcher: Launcher, **job_fields: Any) -> JobResult:
        """Starts the workers and returns when the job has ended and all of them are gone."""
        self._launcher = launcher
        self._events.write("job_started", {"job_dir": str(self._job_dir), **job_fields})
        ticker = asyncio.create_task(self._tick())
        ticker.add_done_callback(self._on_tick_error)
        try:
            self.dispatch(act.AddWorkers(self._config.num_workers))
            end = await self._end
            await self._clear_away(launcher)
            return self._finish(end)
        finally:
            ticker.cancel()
            for worker_id in launcher.running():
                launcher.kill(worker_id)
            await self._server.stop()
            files.remove_endpoint(self._job_dir)
            self._events.close()

    def stop(self, reason: str) -> None:
        """Ends the job after the current step; a second call ends it at once."""
        if not self._stop_requested:
            self._stop_requested = True
            self._console.line(f"{reason}: stopping after the current step (again: at once)")
            self.dispatch(act.StopJob(reason))
            asyncio.get_running_loop().call_later(
                self._config.stop_grace_s, self._end_now, f"{reason}; workers did not leave in time"
            )
        else:
            self._end_now(reason)

    def _end_now(self, reason: str) -> None:
        self._at_once = True
        if not self._end.done():
            self._end.set_result(act.EndJob(succeeded=False, reason=reason))

    def _finish(self, end: act.EndJob) -> JobResult:
        training = self._state.training
        recorded_training, recorded_step = self._recorded
        step = max(self._state.newest_step, recorded_step if recorded_training == training else 0)
        stopped = self._stop_requested and end.reason != "finished"
        status = "stopped" if stopped else "finished" if end.succeeded else "failed"
        self._events.write(
            "job_finished",
            {"status": status, "reason": end.reason, "training": training, "step": step},
        )
        return JobResult(
            end.succeeded,
            stopped,
            end.reason,
            step,
            self._state.last_failed_worker,
            training,
            end.refused,
        )

    # --- events and actions --------------------------------------------------------------

    def dispatch(self, event: act.Event) -> None:
        """Applies an event and carries out the decisions, in order."""
        before = self._state.version
        self._state, actions = decide(self._config, self._state, event, time.monotonic())
        for action in actions:
            self._execute(action)
        if self._state.version != before:
            self._spawn(self._notify())

    def _execute(self, action: act.Action) -> None:
        if isinstance(action, act.Emit):
            self._events.write(action.event, action.fields)
        elif isinstance(action, act.Say):
            self._console.line(action.text)
        elif isinstance(action, act.Reply):
            self._reply(action)
        elif isinstance(action, act.CloseRendezvous):
            self._server.rendezvous.close(action.round)
        elif isinstance(action, act.Launch):
            self._spawn(self._launch(action))
        elif isinstance(action, act.Kill) and self._launcher:
            self._launcher.kill(action.worker_id)
        elif isinstance(action, act.EndJob) and not self._end.done():
            self._end.set_result(action)

    def _reply(self, action: act.Reply) -> None:
        reply = action.reply
        if reply.assignment:
            rendezvous = self._server.rendezvous_of(reply.assignment.round)
            place = msgspec.structs.replace(reply.assignment, rendezvous=rendezvous)
            reply = protocol.EnterReply(assignment=place)
        future = self._waiting.pop(action.worker_id, None)
        if future and not future.done():
            future.set_result(reply)
        else:
            self._replies[action.worker_id] = reply

    async def _launch(self, action: act.Launch) -> None:
        await asyncio.sleep(action.delay_s)
        worker = self._state.workers.get(action.worker_id)
        if self._launcher is None or self._state.stop or worker is None or worker.leaving:
            self.dispatch(act.Exited(action.worker_id, "was not started", failed=False))
            return
        try:
            process = self._launcher.launch(action.worker_id, self._on_exit)
        except OSError as error:
            cause = f"could not be started: {error}"
            self.dispatch(act.Exited(action.worker_id, cause, failed=True))
            return
        self.dispatch(act.Started(action.worker_id, process.host, process.pid))

    def _on_exit(self, event: act.Exited) -> None:
        self._replies.pop(event.worker_id, None)
        waiting = self._waiting.pop(event.worker_id, None)
        if waiting and not waiting.done():
            waiting.cancel()
        self.dispatch(event)

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.dispatch(act.Tick())

    def _on_tick_error(self, ticker: asyncio.Task[None]) -> None:
        if not ticker.cancelled() and ticker.exception() and not self._end.done():
            self._end.set_exception(ticker.exception() or RuntimeError())

    async def _clear_away(self, launcher: Launcher) -> None:
        """Waits for the workers to leave, and ends those that do not.

        Those that are still starting know nothing of the job's end and are told by a signal.
        """
        await self._notify()
        deadline = time.monotonic() + self._config.stop_grace_s
        for worker_id in launcher.running():
            worker = self._state.workers.get(worker_id)
            if worker is None or worker.ready_at is None:
                launcher.kill(worker_id)
        while launcher.running() and time.monotonic() < deadline and not self._at_once:
            await asyncio.sleep(0.02)
        for worker_id in launcher.running():
            launcher.kill(worker_id)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._all_gone(launcher), timeout=10.0)

    @staticmethod
    async def _all_gone(launcher: Launcher) -> None:
        while launcher.running():
            await asyncio.sleep(0.02)

    # --- what the server calls -----------------------------------------------------------

    def on_worker_event(self, event: protocol.WorkerEvent) -> None:
        """Takes a worker's message."""
        if isinstance(event, protocol.Console):
            self._console.raw(event.text)
        elif isinstance(event, protocol.Record):
            self._events.write(event.event, event.fields)
            if "step" in event.fields and event.training >= self._recorded[0]:
                # Exact, while heartbeats lag behind by some steps.
                self._recorded = (event.training, int(event.fields["step"]))
            if event.event == protocol.CHECKPOINT_LOADED:
                step = event.fields.get("step", 0)
                self._console.line(f"going on from the checkpoint of step {step}")
        else:
            if isinstance(event, protocol.Joined):
                # An answer that is still here was for an earlier training.
                self._replies.pop(event.worker_id, None)
            self.dispatch(event)

    async def enter(self, request: protocol.EnterRequest) -> protocol.EnterReply:
        """Holds a worker at the entrance until it has a place, or asks it to come again."""
        known = self._replies.pop(request.worker_id, None)
        if known:
            return known
        future: asyncio.Future[protocol.EnterReply] = asyncio.get_running_loop().create_future()
        self._waiting[request.worker_id] = future
        self.dispatch(request)
        try:
            return await asyncio.wait_for(future, protocol.LONG_POLL_S)
        except asyncio.TimeoutError:
            return protocol.EnterReply()
        finally:
            if self._waiting.get(request.worker_id) is future:
                del self._waiting[request.worker_id]

    async def update_after(self, worker_id: str, version: int) -> protocol.WorkerUpdate:
        """Waits for something newer than `version`."""
        await wait_for_newer(self._changed, lambda: self._state.version, version)
        return update_for(self._state, worker_id)

    def input_position(self) -> protocol.InputReply:
        """Where those read who hold a state."""
        return protocol.InputReply(position=reading_of(self._state))

    def status(self) -> protocol.JobStatus:
        """The present state, for people."""
        return job_status(self._config, self._state, time.monotonic())

    def change_workers(self, request: protocol.ChangeRequest) -> protocol.ChangeReply:
        """Adds or removes workers, or says why not."""
        decision = plan_change(self._config, self._state, request)
        if isinstance(decision, str):
            return protocol.ChangeReply(accepted=False, text=decision)
        for event in decision.events:
            self.dispatch(event)
        return protocol.ChangeReply(accepted=True, text=decision.text)

    def change_slots(self, request: protocol.SlotsRequest) -> protocol.SlotsReply:
        """Grants or revokes slots, or says why not."""
        decision = plan_slots(self._config, self._state, request)
        if isinstance(decision, str):
            return protocol.SlotsReply(accepted=False, text=decision)
        self.dispatch(decision.event)
        return protocol.SlotsReply(accepted=True, text=decision.text, workers=decision.workers)
