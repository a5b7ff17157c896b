"""Who trains: a pure state machine. `decide(state, event, now)` gives a new state and actions.

No clock, socket or process is touched here. The rules are those of "Life of a round" in
the design: a round *forms* (called workers come to the entrance and report their step), gets its
members *assigned*, and *runs* until it is *pending* (a planned change: all stop after the same
step) or *broken* (a member is gone: its collectives cannot complete).

A job may train several times, see `trainings`. Rounds are formed for the current training only.
How many workers are kept up is a matter of `slots`.
"""

from __future__ import annotations

import dataclasses

from hvd_elastic_keras import protocol
from hvd_elastic_keras.config import JobConfig
from hvd_elastic_keras.master import actions as act
from hvd_elastic_keras.master.reasons import Reason
from hvd_elastic_keras.master.restart_policy import GiveUp, Restart, after_failure
from hvd_elastic_keras.master.slots import SlotTransition
from hvd_elastic_keras.master.state import State, Worker, WorkerPhase

ENDED_EARLY = "ended with exit code 0"


def decide(
    config: JobConfig, state: State, event: act.Event, now: float
) -> tuple[State, list[act.Action]]:
    """Applies one event at time `now` (seconds of any steady clock)."""
    if state.ended and isinstance(event, protocol.EnterRequest):
        reply = protocol.EnterReply(leave=state.stop, job_stops=True)
        return state, [act.Reply(event.worker_id, reply)]
    if state.ended and not isinstance(event, act.Exited):
        return state, []
    machine = _Machine(config, state, now)
    machine.handle(event)
    machine.settle()
    return machine.result()


class _Machine(SlotTransition):
    """What each event changes, and what follows from it."""

    def handle(self, event: act.Event) -> None:
        handler = getattr(self, f"on_{_snake(type(event).__name__)}", None)
        if handler is not None:
            handler(event)

    def on_started(self, event: act.Started) -> None:
        self.set_worker(event.worker_id, host=event.host, pid=event.pid)
        fields = {"worker_id": event.worker_id, "host": event.host, "pid": event.pid}
        self.emit("worker_started", **fields)

    def on_joined(self, event: protocol.Joined) -> None:
        worker = self.workers.get(event.worker_id)
        if worker is None or event.training <= worker.training:
            return  # unknown, or sent twice
        self.set_worker(
            event.worker_id,
            phase=WorkerPhase.READY,
            training=event.training,
            entry=worker.entry if worker.phase is WorkerPhase.STARTING else None,
            step=0,
            pid=event.pid,
            ready_at=self.now,
            last_heartbeat=self.now,
        )
        self.set(start_failures=0)
        if event.training > self.state.training:
            self.begin_training(event.training)
        self._emit_ready(worker, event)
        if event.training < self.state.training:
            return
        self.set(num_micro_batches=event.num_micro_batches, batch_grows=event.each)
        if self.capacity < self.config.min_workers:
            self.end(
                False,
                f"min_workers={self.config.min_workers} was given, but a global batch has only "
                f"{event.num_micro_batches} micro-batches and max_workers is "
                f"{self.config.max_workers}. Use a smaller --min_workers or micro_batch_size.",
            )

    def _emit_ready(self, before: Worker, event: protocol.Joined) -> None:
        is_new = before.phase is WorkerPhase.STARTING
        start_up = {"start_up_s": round(self.now - before.launched_at, 3)} if is_new else {}
        self.emit(
            "worker_ready",
            worker_id=event.worker_id,
            pid=event.pid,
            training=event.training,
            **start_up,
            warm_up_s=round(event.warm_up_s, 3),
        )

    def on_heartbeat(self, event: protocol.Heartbeat) -> None:
        worker = self.workers.get(event.worker_id)
        if worker is None:
            return
        self.set_worker(event.worker_id, last_heartbeat=self.now, activity=event.phase)
        if event.training == worker.training:
            self.set_worker(event.worker_id, step=event.step)
            self._note_step(event.training, event.step)
            self._note_reading(event.reading)

    def _note_reading(self, position: protocol.InputPosition | None) -> None:
        known = self.state.reading
        if (
            position is not None
            and position.training == self.state.training
            and (known is None or position.progress > known.progress)
        ):
            self.set(reading=position)

    def _note_step(self, training: int, step: int) -> None:
        if training == self.state.training:
            self.set(newest_step=max(self.state.newest_step, step))

    def on_enter_request(self, event: protocol.EnterRequest) -> None:
        worker = self.workers.get(event.worker_id)
        if worker is None:
            self.dismiss(event.worker_id, "this worker is no longer part of the job")
            return
        if self.state.stop or worker.leaving:
            self.dismiss(event.worker_id, worker.leaving or self.state.stop)
            return
        if self.is_over_for(worker, event):
            self.send_on(event)
            return
        forming = self.state.forming
        if forming and event.worker_id in forming.members and event.from_round < forming.number:
            # The answer with its place was lost on the way.
            reply = protocol.EnterReply(assignment=forming.places[event.worker_id])
            self.actions.append(act.Reply(event.worker_id, reply))
            return
        self.set_worker(event.worker_id, entry=event, step=event.step, last_heartbeat=self.now)
        self._note_step(event.training, event.step)
        self._note_entry(event)

    def _note_entry(self, event: protocol.EnterRequest) -> None:
        running, forming = self.state.running, self.state.forming
        if running and event.worker_id in running.members and not forming:
            # It knows of a failure that the master has not heard of yet.
            self.break_round(Reason("lost contact", event.worker_id))
            forming = self.state.forming
        if running and forming and event.failure and event.from_round == running.number:
            # The others may hang in the collective that failed for this one.
            self.break_round(Reason("lost contact", event.worker_id))
            forming = self.state.forming
        if forming and event.worker_id in forming.members and event.from_round >= forming.number:
            self.break_round(Reason("lost contact", event.worker_id))
            forming = self.state.forming
        if forming and event.worker_id in forming.called and not forming.members:
            self.set(
                forming=dataclasses.replace(
                    forming,
                    first_entry_at=forming.first_entry_at or self.now,
                    stalled_since=forming.stalled_since
                    or (
                        self.now - event.idle_s
                        if running and event.worker_id in running.members
                        else None
                    ),
                )
            )

    def on_running(self, event: protocol.Running) -> None:
        forming = self.state.forming
        if not forming or event.round != forming.number or event.worker_id not in forming.members:
            return
        self.set_worker(event.worker_id, step=event.step, last_heartbeat=self.now)
        if event.worker_id == forming.members[0]:
            forming = dataclasses.replace(forming, root_step=event.step)
        forming = dataclasses.replace(forming, running=forming.running | {event.worker_id})
        self.set(forming=forming)
        if forming.running == set(forming.members):
            self.round_runs(forming)

    def on_refused(self, event: protocol.Refused) -> None:
        if event.worker_id in self.workers and not self.state.stop:
            self._note_step(self.workers[event.worker_id].training, event.step)
            self.emit("worker_refused", worker_id=event.worker_id, message=event.message)
            self.end(False, event.message, refused=True)

    def on_stop_job(self, event: act.StopJob) -> None:
        self.set(stop=event.reason)
        self.emit("job_stopping", reason=event.reason)
        if self.state.running:
            self.set(pending_through=self.state.running.number)
        for worker in list(self.workers.values()):
            if worker.entry:
                self.dismiss(worker.worker_id, event.reason)
            elif worker.phase is WorkerPhase.STARTING:
                self.end_start(worker)

    def on_tick(self, event: act.Tick) -> None:
        for worker in list(self.workers.values()):
            if worker.phase is WorkerPhase.DONE:
                continue  # in the user's own code, which may not let its threads run
            silent_s = self.now - (worker.last_heartbeat or self.now)
            if silent_s > self.config.heartbeat_timeout_s:
                self.evict(worker.worker_id, f"no heartbeat for {silent_s:.0f} s")
        for worker in self.overdue():
            self._kill_overdue(worker)
        self._evict_those_who_do_not_enter()

    def _kill_overdue(self, worker: Worker) -> None:
        limit = f"{worker.leave_within_s:g} s"
        self.say(f"{worker.worker_id} has not left within {limit} ({worker.leaving}): it is killed")
        self.actions.append(act.Kill(worker.worker_id))
        cause = f"was killed: it had not left within {limit}"
        self.on_exited(act.Exited(worker.worker_id, cause, failed=True))

    def _evict_those_who_do_not_enter(self) -> None:
        forming = self.state.forming
        if not forming:
            return
        since = forming.assigned_at or forming.first_entry_at
        if since is None and self.state.running is None and forming.called:
            # After a break everybody comes at once, unless all hang.
            since = forming.opened_at
        if since is None or self.now - since <= self.config.enter_timeout_s:
            return
        missing = (
            set(forming.members) - forming.running
            if forming.members
            else {w for w in forming.called if not self.workers[w].entry}
        )
        for worker_id in sorted(missing):
            limit = f"{self.config.enter_timeout_s:.0f} s"
            self.evict(worker_id, f"did not enter round {forming.number} within {limit}")

    def on_exited(self, event: act.Exited) -> None:
        worker = self.workers.pop(event.worker_id, None)
        if worker is None:
            return
        is_done = worker.phase is WorkerPhase.DONE
        over = bool(self.state.ended or self.state.stop or worker.leaving)
        failed = not over and (event.failed or not is_done)
        cause = _exit_cause(worker, event, expected=over or is_done)
        self.emit(
            "worker_exited",
            worker_id=event.worker_id,
            pid=worker.pid,
            cause=cause,
            failed=failed,
            step=worker.step,
        )
        if self.state.ended:
            return
        if event.failed:
            self.free_old_rounds()
        self._forget_member(worker, cause, planned=over and not event.failed)
        if is_done and worker.training == self.state.training:
            self.note_exit_afterwards(worker, cause, failed, event)
        elif failed:
            self._replace(worker, cause, event.by_itself)
        elif is_done:
            self.lower_target(worker)

    def evict(self, worker_id: str, reason: str) -> None:
        self.actions.append(act.Kill(worker_id))
        self.on_exited(act.Exited(worker_id, f"evicted: {reason}", failed=True))

    def _forget_member(self, worker: Worker, cause: str, planned: bool) -> None:
        running, forming = self.state.running, self.state.forming
        if worker.phase is WorkerPhase.DONE:
            return
        reason = Reason(cause, worker.worker_id)
        if forming and worker.worker_id in forming.members:
            self.break_round(reason)
        elif running and worker.worker_id in running.members:
            gone = not planned or running.number > self.state.pending_through
            if gone:
                self.break_round(reason)
        forming = self.state.forming
        if forming and worker.worker_id in forming.called:
            self.uncall(worker.worker_id)
            if not planned and reason not in forming.reasons:
                self.open_round(reason)

    def _replace(self, worker: Worker, cause: str, by_itself: bool) -> None:
        if self.state.finishing:
            self.note_lost(worker, cause)
            return
        starting = worker.phase is WorkerPhase.STARTING
        advanced = self.state.newest_step > self.state.own_errors_step
        self.set(
            own_errors=(0 if advanced else self.state.own_errors) + by_itself,
            own_errors_step=self.state.newest_step,
        )
        self.set(
            start_failures=self.state.start_failures + 1 if starting else 0,
            last_failure=f"{worker.worker_id} {cause}",
            last_failed_worker=worker.worker_id,
        )
        if starting and cause.startswith(ENDED_EARLY):
            self.end(
                False,
                f"{worker.worker_id} ended without having trained. A script must call "
                "model.fit(callbacks=[ElasticCallback()]), elastic.run or Trainer(...).fit(); a "
                "model module is started with --model=FILE.",
            )
            return
        decision = after_failure(self.config, self.state)
        if isinstance(decision, Restart):
            self.set(restarts_used=self.state.restarts_used + 1)
            self.say(
                f"{worker.worker_id} {cause}; starting a replacement"
                f"{f' in {decision.delay_s:.0f} s' if decision.delay_s else ''} "
                f"(restart {self.state.restarts_used} of {self.config.max_restarts})"
            )
            self.launch(decision.delay_s, self.host_with_room(worker.host))
        elif isinstance(decision, GiveUp):
            self.end(False, decision.reason)
        else:
            self.say(f"{worker.worker_id} {cause}; {decision.reason}")

    def settle(self) -> None:
        if self.state.ended:
            return
        self.settle_training()
        if not self.state.stop:
            self.settle_rounds()
        self.settle_end()


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


def _exit_cause(worker: Worker, event: act.Exited, expected: bool) -> str:
    if event.failed:
        return event.cause
    if worker.leaving:
        return f"left: {worker.leaving}"
    if expected:
        return "finished" if worker.phase is WorkerPhase.DONE else "left: the job stops"
    return f"{event.cause} before the training was finished"
