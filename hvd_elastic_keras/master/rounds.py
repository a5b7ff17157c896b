"""How rounds form, get their members, run and break: the middle part of the state machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from hvd_elastic_keras import protocol
from hvd_elastic_keras.batch_plan import describe_shares, shares_of
from hvd_elastic_keras.master import actions as act
from hvd_elastic_keras.master.placement import assignments, rank_order
from hvd_elastic_keras.master.reasons import START, Reason, joins, leaves, told, without_joining
from hvd_elastic_keras.master.state import Forming, Round, WorkerPhase
from hvd_elastic_keras.master.transition import Transition


class RoundTransition(Transition):
    """The rules of "Life of a round" in the design."""

    def open_round(self, *reasons: Reason) -> None:
        """Starts forming the next round, or adds reasons to the one that is forming."""
        forming = self.state.forming
        if forming and not forming.members:
            more = (*forming.reasons, *reasons)
            self.set(forming=dataclasses.replace(forming, reasons=more))
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
                reasons=reasons,
                opened_at=self.now,
                called=frozenset(self.staying_members),
                size_before=len(running.members) if running else 0,
                stalled_since=None if running else self.now,
            ),
        )
        if running:
            self.set(pending_through=running.number)
        self.emit("round_opened", round=number, reason=told(reasons))

    def break_round(self, reason: Reason) -> None:
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
        reasons: tuple[Reason, ...],
        survivors: frozenset[str],
        size_before: int,
        stalled_since: float,
    ) -> None:
        broken = self.state.last_round
        self.actions.append(act.CloseRendezvous(broken))
        if self.state.stop:
            self.set(broken_through=broken, running=None, forming=None)
            return
        training = {s for s in survivors if self.workers[s].phase is not WorkerPhase.DONE}
        leavers = {s for s in training if self.workers[s].leaving}
        self.set(
            broken_through=broken,
            running=None,
            last_round=broken + 1,
            forming=Forming(
                number=broken + 1,
                reasons=(*self._still_true(reasons), *self._leaving(leavers)),
                opened_at=self.now,
                called=frozenset(training - leavers),
                size_before=size_before,
                stalled_since=stalled_since,
            ),
        )
        self.emit("round_opened", round=broken + 1, reason=str(reasons[-1]))

    def _still_true(self, reasons: Sequence[Reason]) -> tuple[Reason, ...]:
        """Without those that were to join, but are gone or leave."""
        gone = [r.worker_id for r in reasons if not self._stays(r.worker_id)]
        for worker_id in gone:
            reasons = without_joining(reasons, worker_id)
        return tuple(reasons)

    def _stays(self, worker_id: str) -> bool:
        return worker_id in self.workers and not self.workers[worker_id].leaving

    def _leaving(self, worker_ids: Iterable[str]) -> list[Reason]:
        return [leaves(w, self.workers[w].leaving) for w in sorted(worker_ids)]

    def uncall(self, worker_id: str) -> None:
        """Forms the round without a worker that was awaited."""
        forming = self.state.forming
        if forming:
            called = forming.called - {worker_id}
            reasons = without_joining(forming.reasons, worker_id)
            self.set(forming=dataclasses.replace(forming, called=called, reasons=reasons))

    def _call_newcomers(self, forming: Forming) -> None:
        room = self.capacity - len(forming.called)
        newcomers = [w for w in self.waiting if w not in forming.called][: max(0, room)]
        for worker_id in newcomers:
            self.set_worker(worker_id, phase=WorkerPhase.MEMBER)
        if newcomers:
            reasons = forming.reasons
            if reasons != (START,):
                reasons = tuple(dict.fromkeys((*reasons, *map(joins, newcomers))))
            self.set(
                forming=dataclasses.replace(
                    forming,
                    called=forming.called | set(newcomers),
                    reasons=reasons,
                    first_entry_at=forming.first_entry_at or self.now,
                )
            )

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
        places = assignments(forming.number, ordered)
        for worker_id, assignment in places.items():
            self.set_worker(worker_id, entry=None, phase=WorkerPhase.MEMBER)
            reply = protocol.EnterReply(assignment=assignment)
            self.actions.append(act.Reply(worker_id, reply))
        self.set(
            running=None,
            waiting_since=None,
            forming=dataclasses.replace(
                forming,
                members=tuple(w.worker_id for w in ordered),
                places=places,
                assigned_at=self.now,
                stalled_since=forming.stalled_since or self.now,
            ),
        )

    def round_runs(self, forming: Forming) -> None:
        seniority = self.state.next_seniority
        for member in forming.members:
            if member in self.workers and self.workers[member].seniority is None:
                self.set_worker(member, seniority=seniority)
                seniority += 1
        lost = max(0, self.state.newest_step - forming.root_step)
        shares = self._micro_batches(len(forming.members))
        stall_s = round(self.now - (forming.stalled_since or forming.opened_at), 3)
        self.set(
            running=Round(forming.number, forming.members),
            forming=None,
            next_seniority=seniority,
            newest_step=forming.root_step,
            reading=None if lost else self.state.reading,
            waiting_since=None,
        )
        self.emit(
            "round_running",
            round=forming.number,
            training=self.state.training,
            world_size=len(forming.members),
            members=list(forming.members),
            micro_batches=shares,
            reason=told(forming.reasons),
            step=forming.root_step,
            stall_s=stall_s,
            steps_lost=lost,
        )
        self.say(_round_line(forming, shares, self.state.training, lost, stall_s))

    def _micro_batches(self, size: int) -> list[int]:
        """How many each of so many workers computes; a training loop of one's own has none."""
        number = self.state.num_micro_batches
        if not number:
            return []
        return [number] * size if self.state.batch_grows else shares_of(size, number)

    def _open_for_leavers(self) -> None:
        running = self.state.running
        if running and running.number > self.state.pending_through:
            leavers = [
                m
                for m in running.members
                if m in self.workers
                and self.workers[m].leaving
                and self.workers[m].phase is not WorkerPhase.DONE
            ]
            if leavers:
                self.open_round(*self._leaving(leavers))

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
        self.open_round(*(map(joins, newcomers) if self.state.running else (START,)))
        if self.state.forming:
            self._call_newcomers(self.state.forming)
            self._assign_if_complete()

    def _tell_of_spares(self) -> None:
        running = self.state.running
        if not running or self.state.finishing or len(self.staying_members) < self.capacity:
            return
        new = [w for w in self.waiting if not self.workers[w].told_spare]
        for worker_id in new:
            self.set_worker(worker_id, told_spare=True)
        if new:
            verb = "waits as a spare" if len(new) == 1 else "wait as spares"
            self.say(f"{', '.join(new)} {verb}: {self._why_full()}")

    def _why_full(self) -> str:
        useful = 0 if self.state.batch_grows else self.state.num_micro_batches
        if useful and useful < self.config.max_workers:
            return (
                f"a batch is cut into {useful} micro-batch{'' if useful == 1 else 'es'}; a smaller "
                "micro_batch_size gives work to more workers"
            )
        return f"{self.config.max_workers} workers train already (--max_workers)"

    def _more_may_come(self, waiting: list[str], num_members: int) -> bool:
        """Whether to wait a little, so that workers that start together share a round."""
        if not self.coming or num_members + len(waiting) >= self.capacity:
            return False
        window = self.config.join_window_s if self.state.running else self.config.start_timeout_s
        first = min(self.workers[w].ready_at or self.now for w in waiting)
        return self.now - first < window

    def _say_waiting(self, present: int) -> None:
        coming = self.coming
        at_start = coming and self.state.last_round == self.state.last_round_before
        if self.state.waiting_since is None and not at_start:
            self.set(waiting_since=self.now)
            text = f"waiting: {present} of at least {self.min_workers} workers are here"
            self.emit("waiting", workers=present, min_workers=self.min_workers)
            hint = "a replacement is starting" if coming else "add one with `ctl add 1`"
            self.say(f"{text}; {hint}")

    def settle_rounds(self) -> None:
        forming = self.state.forming
        if forming is None:
            self._open_for_newcomers()
        elif not forming.members:
            self._call_newcomers(forming)
            self._assign_if_complete()
        if self.state.forming is None:
            self._open_for_leavers()
            self._tell_of_spares()


def _round_line(
    forming: Forming, shares: list[int], training: int, lost: int, stall_s: float
) -> str:
    size = len(forming.members)
    change = f"{forming.size_before} → {size}" if forming.size_before else f"{size}"
    plural = "" if size == 1 else "s"
    members = ", ".join(forming.members)
    noun = "micro-batch" if sum(shares) == 1 else "micro-batches"
    parts = f", {describe_shares(shares)} {noun}" if shares else ""
    if not forming.size_before and forming.reasons == (START,):
        what = f"start training {training}" if training > 1 else "start"
        return f"round {forming.number}: {size} worker{plural} ({members}) {what}{parts}"
    return (
        f"round {forming.number}: {change} worker{plural} ({members}){parts}: "
        f"{told(forming.reasons)}; stalled {stall_s:.2f} s, "
        f"{lost} step{'' if lost == 1 else 's'} lost"
    )
