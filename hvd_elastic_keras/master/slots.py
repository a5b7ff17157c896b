"""Slots: how many workers a job may keep up on each host, granted and revoked from outside.

A worker occupies a slot from its launch until it is gone. Who fails is replaced in its slot. A slot
that is revoked is gone at once; its worker leaves after the current step, and is killed if it has
not done so within the time that the request allows. A worker that is asked to leave in another way
(`ctl remove`, SIGTERM) takes its slot with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hvd_elastic_keras import protocol
from hvd_elastic_keras.master import actions as act
from hvd_elastic_keras.master.reasons import REVOKED, Reason, joins, leaves
from hvd_elastic_keras.master.state import Worker, WorkerPhase
from hvd_elastic_keras.master.trainings import TrainingTransition

NEVER_JOINED = "who was to join leaves before that"


class SlotTransition(TrainingTransition):
    """The rules above."""

    def on_add_workers(self, event: act.AddWorkers) -> None:
        """Fills slots whose worker was lost and not replaced before it takes more."""
        staying = [w for w in self.workers.values() if not w.leaving]
        missing = max(0, len(staying) + event.count - self.state.target_workers)
        self._grant(next(iter(self.state.slots)), missing, event.count)

    def on_grant_slots(self, event: act.GrantSlots) -> None:
        self._grant(event.host, event.count, event.count)

    def _grant(self, host: str, num_slots: int, num_workers: int) -> None:
        self.change_slots(host, num_slots)
        started = [self.launch(0.0, host) for _ in range(num_workers)]
        if num_slots:
            self.emit("slots_granted", host=host, slots=num_slots, workers=started)

    def on_revoke_slots(self, event: act.RevokeSlots) -> None:
        self._revoke(event.workers, REVOKED, event.empty, event.deadline_s)
        forming = self.state.forming
        told = {r.worker_id for r in forming.reasons} | {*forming.members} if forming else set()
        # No round tells of these.
        others = [w for w in event.workers if w not in told]
        num_empty = sum(event.empty.values())
        what = [*others, *([f"{num_empty} empty"] if num_empty else [])]
        if what:
            self.say(f"{REVOKED}: {', '.join(what)} (not in the round)")

    def on_leaving(self, event: protocol.Leaving) -> None:
        self._revoke([event.worker_id], event.reason)

    def on_remove_worker(self, event: act.RemoveWorker) -> None:
        self._revoke([event.worker_id], "removed on request")

    def _revoke(
        self,
        worker_ids: Iterable[str],
        reason: str,
        empty: Mapping[str, int] | None = None,
        deadline_s: float | None = None,
    ) -> None:
        """Takes slots back: those of the workers, who are to leave, and `empty` ones by host."""
        leavers = [w for i in worker_ids if (w := self.workers.get(i)) and not w.leaving]
        empty = empty or {}
        for host in dict.fromkeys([*(w.host for w in leavers), *empty]):
            there = [w.worker_id for w in leavers if w.host == host]
            count = len(there) + empty.get(host, 0)
            self.change_slots(host, -count)
            self.emit(
                "slots_revoked",
                host=host,
                slots=count,
                deadline_s=deadline_s,
                workers=there,
                reason=reason,
            )
        for worker in leavers:
            self._send_away(worker, reason, deadline_s)
        self._form_without([w.worker_id for w in leavers], reason)

    def _send_away(self, worker: Worker, reason: str, deadline_s: float | None) -> None:
        worker_id = worker.worker_id
        self.set_worker(
            worker_id, leaving=reason, leaving_since=self.now, leave_within_s=deadline_s
        )
        if worker.entry:
            self.dismiss(worker_id, reason)
        if worker.phase is WorkerPhase.STARTING:
            self.end_start(self.workers[worker_id])

    def end_start(self, worker: Worker) -> None:
        """Ends a worker that is still starting; one without a process is gone at once."""
        if worker.pid is None:
            del self.workers[worker.worker_id]
        else:
            self.actions.append(act.Kill(worker.worker_id))

    def _form_without(self, leavers: list[str], cause: str) -> None:
        """Takes members out of the round that forms, or opens one; its line will name them.

        A round whose members have their places already runs first; `settle` opens the next one.
        """
        running, forming = self.state.running, self.state.forming
        if forming and forming.members:
            return
        reasons: list[Reason] = []
        for worker_id in leavers:
            if forming and worker_id in forming.called:
                self.uncall(worker_id)
                if forming.size_before and joins(worker_id) not in forming.reasons:
                    reasons.append(leaves(worker_id, cause))
            elif (
                running
                and worker_id in running.members
                and self.workers[worker_id].phase is not WorkerPhase.DONE
            ):
                reasons.append(leaves(worker_id, cause))
        forming = self.state.forming
        if forming and not forming.reasons and not reasons:
            # It forms for nobody else, but the members may have stopped their round for it.
            reasons = [Reason(NEVER_JOINED)]
        if reasons:
            self.open_round(*reasons)

    def overdue(self) -> list[Worker]:
        """Workers that should have left by now."""
        return [
            w
            for w in self.workers.values()
            if w.leaving_since is not None
            and w.leave_within_s is not None
            and self.now - w.leaving_since >= w.leave_within_s
        ]
