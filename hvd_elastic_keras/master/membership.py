"""Who trains: a pure state machine. `decide(state, event, now)` gives a new state and actions.

No clock, socket or process is touched here. The rules are those of "Life of a round" in
the design: a round *forms* (called workers come to the entrance and report their step), gets its
members *assigned*, and *runs* until it is *pending* (a planned change: all stop after the same
step) or *broken* (a member is gone: its collectives cannot complete).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from hvd_elastic_keras import protocol
from hvd_elastic_keras.config import JobConfig
from hvd_elastic_keras.master import actions as act
from hvd_elastic_keras.master.placement import assignments, rank_order
from hvd_elastic_keras.master.restart_policy import (
    GiveUp,
    Restart,
    after_failure,
)
from hvd_elastic_keras.master.state import Forming, Round, State, Worker, WorkerPhase

NOT_YET_THERE = (WorkerPhase.STARTING, WorkerPhase.READY)


def decide(
    config: JobConfig, state: State, event: act.Event, now: float
) -> tuple[State, list[act.Action]]:
    """Applies one event at time `now` (seconds of any steady clock)."""
    if state.ended and not isinstance(event, act.Exited):
        return state, []
    machine = _Machine(config, state, now)
    machine.handle(event)
    machine.settle()
    return machine.result()


class _Machine:
    """One transition: a scratch copy of the state and the actions decided so far."""

    def __init__(self, config: JobConfig, state: State, now: float) -> None:
        self.config = config
        self.before = state
        self.state = state
        self.workers: dict[str, Worker] = dict(state.workers)
        self.now = now
        self.actions: list[act.Action] = []

    def result(self) -> tuple[State, list[act.Action]]:
        state = dataclasses.replace(self.state, workers=self.workers)
        if state != self.before:
            state = dataclasses.replace(state, version=state.version + 1)
        return state, self.actions

    # --- small helpers -------------------------------------------------------------------

    def set(self, **changes: Any) -> None:
        self.state = dataclasses.replace(self.state, **changes)

    def set_worker(self, worker_id: str, **changes: Any) -> None:
        self.workers[worker_id] = dataclasses.replace(self.workers[worker_id], **changes)

    def emit(self, event: str, **fields: Any) -> None:
        self.actions.append(act.Emit(event, fields))

    def say(self, text: str) -> None:
        self.actions.append(act.Say(text))

    def dismiss(self, worker_id: str, reason: str) -> None:
        self.actions.append(act.Reply(worker_id, protocol.EnterReply(leave=reason)))

    @property
    def capacity(self) -> int:
        useful = self.state.num_micro_batches or self.config.max_workers
        return min(self.config.max_workers, useful)

    @property
    def min_workers(self) -> int:
        # Once somebody has finished, the others only have to finish too.
        return 1 if self.state.finishing else self.config.min_workers

    @property
    def staying_members(self) -> list[str]:
        members = self.state.running.members if self.state.running else ()
        return [
            m
            for m in members
            if m in self.workers
            and not self.workers[m].leaving
            and self.workers[m].phase is not WorkerPhase.DONE
        ]

    @property
    def waiting(self) -> list[str]:
        """Warm workers at the entrance that are not called to a round, oldest first."""
        ready = [
            w
            for w in self.workers.values()
            if w.phase is WorkerPhase.READY and w.entry and not w.leaving
        ]
        return [w.worker_id for w in sorted(ready, key=lambda w: w.number)]

    # --- events --------------------------------------------------------------------------

    def handle(self, event: act.Event) -> None:
        handler = getattr(self, f"on_{_snake(type(event).__name__)}", None)
        if handler is not None:
            handler(event)

    def on_started(self, event: act.Started) -> None:
        self.set_worker(event.worker_id, host=event.host, pid=event.pid)
        fields = {"worker_id": event.worker_id, "host": event.host, "pid": event.pid}
        self.emit("worker_started", **fields)

    def on_joined(self, event: protocol.Joined) -> None:
        if event.worker_id not in self.workers:
            return
        self.set_worker(
            event.worker_id,
            phase=WorkerPhase.READY,
            pid=event.pid,
            ready_at=self.now,
            last_heartbeat=self.now,
        )
        self.set(num_micro_batches=event.num_micro_batches, start_failures=0)
        self.emit(
            "worker_ready",
            worker_id=event.worker_id,
            pid=event.pid,
            start_up_s=round(self.now - self.workers[event.worker_id].launched_at, 3),
            warm_up_s=round(event.warm_up_s, 3),
        )

    def on_heartbeat(self, event: protocol.Heartbeat) -> None:
        if event.worker_id in self.workers:
            self.set_worker(
                event.worker_id, last_heartbeat=self.now, step=event.step, activity=event.phase
            )
            self.set(newest_step=max(self.state.newest_step, event.step))

    def on_enter_request(self, event: protocol.EnterRequest) -> None:
        worker = self.workers.get(event.worker_id)
        if worker is None:
            self.dismiss(event.worker_id, "this worker is no longer part of the job")
            return
        if self.state.stop or worker.leaving:
            self.dismiss(event.worker_id, worker.leaving or self.state.stop)
            return
        self.set_worker(event.worker_id, entry=event, step=event.step, last_heartbeat=self.now)
        self.set(newest_step=max(self.state.newest_step, event.step))
        self._note_entry(event)

    def _note_entry(self, event: protocol.EnterRequest) -> None:
        running, forming = self.state.running, self.state.forming
        if running and event.worker_id in running.members and not forming:
            # It knows of a failure that the master has not heard of yet.
            self.break_round(f"{event.worker_id} lost contact")
            forming = self.state.forming
        if forming and event.worker_id in forming.members and event.from_round >= forming.number:
            self.break_round(f"{event.worker_id} lost contact")
            forming = self.state.forming
        if forming and event.worker_id in forming.called and not forming.members:
            self.set(
                forming=dataclasses.replace(
                    forming,
                    first_entry_at=forming.first_entry_at or self.now,
                    stalled_since=forming.stalled_since or self.now,
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
            self._round_runs(forming)

    def on_leaving(self, event: protocol.Leaving) -> None:
        self.send_away(event.worker_id, event.reason)

    def on_remove_worker(self, event: act.RemoveWorker) -> None:
        self.send_away(event.worker_id, "removed on request")

    def on_add_workers(self, event: act.AddWorkers) -> None:
        self.set(target_workers=self.state.target_workers + event.count)
        for _ in range(event.count):
            self.launch(0.0)

    def on_done(self, event: protocol.Done) -> None:
        if event.worker_id in self.workers:
            self.set_worker(event.worker_id, phase=WorkerPhase.DONE, step=event.step)
            self.set(finishing=True, newest_step=max(self.state.newest_step, event.step))

    def on_stop_job(self, event: act.StopJob) -> None:
        self.set(stop=event.reason)
        self.emit("job_stopping", reason=event.reason)
        if self.state.running:
            self.set(pending_through=self.state.running.number)
        for worker in self.workers.values():
            if worker.entry:
                self.dismiss(worker.worker_id, event.reason)

    def on_tick(self, event: act.Tick) -> None:
        for worker in list(self.workers.values()):
            silent_s = self.now - (worker.last_heartbeat or self.now)
            if silent_s > self.config.heartbeat_timeout_s:
                self.evict(worker.worker_id, f"no heartbeat for {silent_s:.0f} s")
        self._evict_those_who_do_not_enter()

    def _evict_those_who_do_not_enter(self) -> None:
        forming = self.state.forming
        if not forming:
            return
        since = forming.assigned_at or forming.first_entry_at or self.now
        if self.now - since <= self.config.enter_timeout_s:
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
        over = (
            self.state.ended
            or self.state.stop
            or worker.phase is WorkerPhase.DONE
            or worker.leaving
        )
        failed = not over
        cause = _exit_cause(worker, event, expected=bool(over))
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
        self._forget_member(worker, cause, planned=bool(over) and not event.failed)
        if failed:
            self._replace(worker, cause)

    # --- decisions -----------------------------------------------------------------------

    def launch(self, delay_s: float) -> None:
        number = self.state.next_worker_number
        worker_id = f"w{number}"
        self.workers[worker_id] = Worker(worker_id, launched_at=self.now + delay_s)
        self.set(next_worker_number=number + 1)
        self.actions.append(act.Launch(worker_id, delay_s))

    def evict(self, worker_id: str, reason: str) -> None:
        self.actions.append(act.Kill(worker_id))
        self.on_exited(act.Exited(worker_id, f"evicted: {reason}", failed=True))

    def send_away(self, worker_id: str, reason: str) -> None:
        worker = self.workers.get(worker_id)
        if worker is None or worker.leaving:
            return
        self.set_worker(worker_id, leaving=reason)
        self.set(target_workers=max(0, self.state.target_workers - 1))
        if worker.entry:
            self.dismiss(worker_id, reason)
        running, forming = self.state.running, self.state.forming
        if forming and worker_id in forming.called and not forming.members:
            self.uncall(worker_id)
        elif running and worker_id in running.members:
            self.open_round(f"{worker_id} leaves ({reason})")
        if worker.phase is WorkerPhase.STARTING:
            self.actions.append(act.Kill(worker_id))

    def _forget_member(self, worker: Worker, cause: str, planned: bool) -> None:
        running, forming = self.state.running, self.state.forming
        if worker.phase is WorkerPhase.DONE:
            return
        reason = f"{worker.worker_id} {cause}"
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

    def uncall(self, worker_id: str) -> None:
        forming = self.state.forming
        if forming:
            called = forming.called - {worker_id}
            self.set(forming=dataclasses.replace(forming, called=called))

    def _replace(self, worker: Worker, cause: str) -> None:
        starting = worker.phase is WorkerPhase.STARTING
        self.set(
            start_failures=self.state.start_failures + 1 if starting else 0,
            last_failure=f"{worker.worker_id} {cause}",
            last_failed_worker=worker.worker_id,
        )
        if len(self.workers) >= self.state.target_workers or self.state.finishing:
            return
        decision = after_failure(self.config, self.state)
        if isinstance(decision, Restart):
            self.set(restarts_used=self.state.restarts_used + 1)
            self.say(
                f"{worker.worker_id} {cause}; starting a replacement"
                f"{f' in {decision.delay_s:.0f} s' if decision.delay_s else ''} "
                f"(restart {self.state.restarts_used} of {self.config.max_restarts})"
            )
            self.launch(decision.delay_s)
        elif isinstance(decision, GiveUp):
            self.end(False, decision.reason)
        else:
            self.say(f"{worker.worker_id} {cause}; {decision.reason}")

    def open_round(self, reason: str) -> None:
        """Starts forming the next round, or adds a reason to the one that is forming."""
        forming = self.state.forming
        if forming and not forming.members:
            reasons = (*forming.reasons, reason)
            self.set(forming=dataclasses.replace(forming, reasons=reasons))
            return
        if forming:
            # Assigned already: `settle` opens another one when that one runs.
            return
        running = self.state.running
        number = self.state.last_round + 1
        self.set(
            last_round=number,
            forming=Forming(
                number=number,
                reasons=(reason,),
                opened_at=self.now,
                called=frozenset(self.staying_members),
                size_before=len(running.members) if running else 0,
                stalled_since=None if running else self.now,
            ),
        )
        if running:
            self.set(pending_through=running.number)
        self.emit("round_opened", round=number, reason=reason)

    def break_round(self, reason: str) -> None:
        """The newest round has lost a member: end it and form the next one without delay."""
        forming, running = self.state.forming, self.state.running
        size_before = len(running.members) if running else 0
        stalled_since = self.now
        if forming and forming.members:
            # Broken before all of its members ran: they are called again.
            survivors = frozenset(m for m in forming.members if m in self.workers)
            reasons, size_before = forming.reasons, forming.size_before
            stalled_since = forming.stalled_since or self.now
            self._begin_after_break((*reasons, reason), survivors, size_before, stalled_since)
            return
        if running:
            survivors = frozenset(self.staying_members)
            if forming:
                self.set(
                    broken_through=running.number,
                    running=None,
                    forming=dataclasses.replace(
                        forming,
                        reasons=(*forming.reasons, reason),
                        stalled_since=forming.stalled_since or self.now,
                    ),
                )
                self.actions.append(act.CloseRendezvous(running.number))
                return
            self._begin_after_break((reason,), survivors, size_before, stalled_since)

    def _begin_after_break(
        self,
        reasons: tuple[str, ...],
        survivors: frozenset[str],
        size_before: int,
        stalled_since: float,
    ) -> None:
        broken = self.state.last_round
        self.actions.append(act.CloseRendezvous(broken))
        if self.state.stop:
            self.set(broken_through=broken, running=None, forming=None)
            return
        survivors = frozenset(s for s in survivors if not self.workers[s].leaving)
        self.set(
            broken_through=broken,
            running=None,
            last_round=broken + 1,
            forming=Forming(
                number=broken + 1,
                reasons=reasons,
                opened_at=self.now,
                called=survivors,
                size_before=size_before,
                stalled_since=stalled_since,
            ),
        )
        self.emit("round_opened", round=broken + 1, reason=reasons[-1])

    def _round_runs(self, forming: Forming) -> None:
        seniority = self.state.next_seniority
        for member in forming.members:
            if self.workers[member].seniority is None:
                self.set_worker(member, seniority=seniority)
                seniority += 1
        lost = max(0, self.state.newest_step - forming.root_step)
        stall_s = round(self.now - (forming.stalled_since or forming.opened_at), 3)
        self.set(
            running=Round(forming.number, forming.members),
            forming=None,
            next_seniority=seniority,
            newest_step=forming.root_step,
            waiting_since=None,
        )
        self.emit(
            "round_running",
            round=forming.number,
            world_size=len(forming.members),
            members=list(forming.members),
            reason="; ".join(forming.reasons),
            step=forming.root_step,
            stall_s=stall_s,
            steps_lost=lost,
        )
        self.say(_round_line(forming, lost, stall_s))

    # --- what follows from the new state ---------------------------------------------------

    def settle(self) -> None:
        if self.state.ended:
            return
        if not self.state.stop:
            self._settle_rounds()
        self._settle_end()

    def _settle_rounds(self) -> None:
        forming = self.state.forming
        if forming is None:
            self._open_for_newcomers()
        elif not forming.members:
            self._call_newcomers(forming)
            self._assign_if_complete()
        if self.state.forming is None:
            self._open_for_leavers()

    def _open_for_leavers(self) -> None:
        running = self.state.running
        if running and running.number > self.state.pending_through:
            leavers = [m for m in running.members if m in self.workers and self.workers[m].leaving]
            if leavers:
                self.open_round(f"{', '.join(leavers)} leaves ({self.workers[leavers[0]].leaving})")

    def _open_for_newcomers(self) -> None:
        waiting = self.waiting
        members = self.staying_members
        if not waiting or self.state.finishing or len(members) >= self.capacity:
            return
        if self.state.running is None and len(waiting) < self.min_workers:
            self._say_waiting(len(waiting))
            return
        if self._more_may_come(waiting, len(members)):
            return
        newcomers = waiting[: self.capacity - len(members)]
        verb = "joins" if len(newcomers) == 1 else "join"
        self.open_round(f"{', '.join(newcomers)} {verb}" if self.state.running else "start")
        if self.state.forming:
            self._call_newcomers(self.state.forming)
            self._assign_if_complete()

    def _more_may_come(self, waiting: list[str], num_members: int) -> bool:
        """Whether to wait a little, so that workers that start together share a round."""
        coming = [w for w in self.workers.values() if not w.entry and w.phase in NOT_YET_THERE]
        if not coming or num_members + len(waiting) >= self.capacity:
            return False
        window = self.config.join_window_s if self.state.running else self.config.start_timeout_s
        first = min(self.workers[w].ready_at or self.now for w in waiting)
        return self.now - first < window

    def _call_newcomers(self, forming: Forming) -> None:
        room = self.capacity - len(forming.called)
        newcomers = [w for w in self.waiting if w not in forming.called][: max(0, room)]
        for worker_id in newcomers:
            self.set_worker(worker_id, phase=WorkerPhase.MEMBER)
        if newcomers:
            called = forming.called | set(newcomers)
            since = forming.first_entry_at or self.now
            self.set(forming=dataclasses.replace(forming, called=called, first_entry_at=since))

    def _assign_if_complete(self) -> None:
        forming = self.state.forming
        if not forming:
            return
        if len(forming.called) < self.min_workers:
            self._say_waiting(len(forming.called))
            return
        called = [self.workers[w] for w in forming.called]
        if not all(worker.entry for worker in called):
            return
        ordered = rank_order(called)
        for worker_id, assignment in assignments(forming.number, ordered).items():
            self.set_worker(worker_id, entry=None, phase=WorkerPhase.MEMBER)
            reply = protocol.EnterReply(assignment=assignment)
            self.actions.append(act.Reply(worker_id, reply))
        self.set(
            running=None,
            forming=dataclasses.replace(
                forming,
                members=tuple(w.worker_id for w in ordered),
                assigned_at=self.now,
                stalled_since=forming.stalled_since or self.now,
            ),
        )

    def _say_waiting(self, present: int) -> None:
        coming = any(w.phase is WorkerPhase.STARTING for w in self.workers.values())
        at_start = coming and not self.state.last_round
        if self.state.waiting_since is None and not at_start:
            self.set(waiting_since=self.now)
            text = f"waiting: {present} of at least {self.min_workers} workers are here"
            self.emit("waiting", workers=present, min_workers=self.min_workers)
            hint = "a replacement is starting" if coming else "add one with `ctl add 1`"
            self.say(f"{text}; {hint}")

    def _settle_end(self) -> None:
        alive = self.workers.values()
        if self.state.finishing and all(
            w.phase in (WorkerPhase.DONE, WorkerPhase.STARTING) or w.worker_id in self.waiting
            for w in alive
        ):
            self.end(True, "finished")
        elif not self.workers:
            self._end_without_workers()
        elif self.state.waiting_since is not None and not self.state.stop:
            waited = self.now - self.state.waiting_since
            if waited > self.config.wait_timeout_s:
                self.end(
                    False,
                    f"fewer than {self.config.min_workers} workers for {waited:.0f} s "
                    "(wait_timeout_s). Lower --min_workers or raise --max_restarts.",
                )

    def _end_without_workers(self) -> None:
        if self.state.stop:
            self.end(True, self.state.stop)
        elif self.state.last_failure:
            self.end(
                False,
                f"no worker is left and all {self.config.max_restarts} restarts are used up; "
                f"the last failure was {self.state.last_failure}. "
                "Raise --max_restarts if the workers' logs show nothing wrong.",
            )
        else:
            self.end(False, "all workers have left before the training was finished.")

    def end(self, succeeded: bool, reason: str) -> None:
        if not self.state.ended:
            self.set(ended=True, stop=self.state.stop or reason)
            for worker in self.workers.values():
                if worker.entry:
                    self.dismiss(worker.worker_id, reason)
            self.actions.append(act.CloseRendezvous(self.state.last_round))
            self.actions.append(act.EndJob(succeeded, reason))


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


def _round_line(forming: Forming, lost: int, stall_s: float) -> str:
    size = len(forming.members)
    change = f"{forming.size_before} → {size}" if forming.size_before else f"{size}"
    plural = "" if size == 1 else "s"
    return (
        f"round {forming.number}: {change} worker{plural} ({', '.join(forming.members)}): "
        f"{_join(forming.reasons)}; stalled {stall_s:.2f} s, {lost} steps lost"
    )


def _join(reasons: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(reasons))
