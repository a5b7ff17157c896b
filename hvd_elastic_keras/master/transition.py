"""One transition of the membership state machine: scratch state, actions, and how jobs end."""

from __future__ import annotations

import dataclasses
from typing import Any

from hvd_elastic_keras import protocol
from hvd_elastic_keras.config import JobConfig
from hvd_elastic_keras.master import actions as act
from hvd_elastic_keras.master.state import State, Worker, WorkerPhase, training_is_over


class Transition:
    """A scratch copy of the state at time `now`, and the actions decided so far."""

    def __init__(self, config: JobConfig, state: State, now: float) -> None:
        self.config = config
        self.before = state
        self.state = state
        self.workers: dict[str, Worker] = dict(state.workers)
        self.now = now
        self.actions: list[act.Action] = []

    def result(self) -> tuple[State, list[act.Action]]:
        state = dataclasses.replace(self.state, workers=self.workers)
        if _news(state) != _news(self.before):
            state = dataclasses.replace(state, version=state.version + 1)
        return state, self.actions

    def set(self, **changes: Any) -> None:
        self.state = dataclasses.replace(self.state, **changes)

    def set_worker(self, worker_id: str, **changes: Any) -> None:
        self.workers[worker_id] = dataclasses.replace(self.workers[worker_id], **changes)

    def emit(self, event: str, **fields: Any) -> None:
        self.actions.append(act.Emit(event, fields))

    def say(self, text: str) -> None:
        self.actions.append(act.Say(text))

    def change_slots(self, host: str, by: int) -> None:
        """Grants a host more slots, or takes some back if `by` is negative."""
        count = max(0, self.state.slots.get(host, 0) + by)
        self.set(slots={**self.state.slots, host: count})

    def host_with_room(self, preferred: str = "") -> str:
        """A host with a slot that no staying worker holds: the preferred one if possible."""
        hosts = sorted(self.state.slots, key=lambda host: host != preferred)
        staying = [w.host for w in self.workers.values() if not w.leaving]
        free = (host for host in hosts if self.state.slots[host] > staying.count(host))
        return next(free, hosts[0])

    def dismiss(self, worker_id: str, reason: str) -> None:
        reply = protocol.EnterReply(leave=reason, job_stops=bool(self.state.stop))
        self.actions.append(act.Reply(worker_id, reply))

    def tell_over(self, worker_id: str) -> None:
        """Sends a worker on that asked for a place in a training that is finished."""
        self.actions.append(act.Reply(worker_id, protocol.EnterReply(training_over=True)))

    @property
    def training_over(self) -> bool:
        return training_is_over(self.state, self.workers)

    @property
    def coming(self) -> bool:
        """Whether more workers may soon come to the entrance of the current training."""
        return any(self._comes(worker) for worker in self.workers.values() if not worker.entry)

    def _comes(self, worker: Worker) -> bool:
        if worker.phase is WorkerPhase.DONE:
            # It is in the part of the script before the current training.
            return worker.training < self.state.training and not worker.leaving
        return worker.phase in (WorkerPhase.STARTING, WorkerPhase.READY)

    @property
    def capacity(self) -> int:
        useful = 0 if self.state.batch_grows else self.state.num_micro_batches
        return min(self.config.max_workers, useful or self.config.max_workers)

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
            if w.phase is WorkerPhase.READY
            and w.training == self.state.training
            and w.entry
            and not w.leaving
        ]
        return [w.worker_id for w in sorted(ready, key=lambda w: w.number)]

    def settle_end(self) -> None:
        if self.state.ended:
            return
        if self.training_over:
            self._settle_end_of_script()
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

    def _settle_end_of_script(self) -> None:
        """Ends the job when all workers have come to the end of the script, or are lost.

        Whoever has trained may yet train again; who is still starting could only repeat the script.
        """
        state = self.state
        if any(w.phase is not WorkerPhase.STARTING for w in self.workers.values()):
            return
        if state.errors_afterwards:
            _, worker_id, cause = min(state.errors_afterwards)
            self.set(last_failed_worker=worker_id)
            self.end(False, f"{worker_id} {cause} after the training")
        elif state.script_ended:
            self.end(True, "finished")
        elif not self.workers and state.stop:
            self.end(True, state.stop)
        elif not self.workers:
            self.end(
                False,
                "the training is finished, but no worker has come to the end of the script: "
                f"{', '.join(state.lost_afterwards)}",
            )

    def _end_without_workers(self) -> None:
        if self.state.stop:
            self.end(True, self.state.stop)
        elif self.state.last_failure and self.state.target_workers > 0:
            self.end(
                False,
                f"no worker is left and all {self.config.max_restarts} restarts are used up; "
                f"the last failure was {self.state.last_failure}. "
                "Raise --max_restarts if the workers' logs show nothing wrong.",
            )
        else:
            self.end(False, "all workers have left before the training was finished.")

    def end(self, succeeded: bool, reason: str, refused: bool = False) -> None:
        if not self.state.ended:
            self.set(ended=True, stop=self.state.stop or reason)
            for worker in self.workers.values():
                if worker.entry:
                    self.dismiss(worker.worker_id, reason)
            self.actions.append(act.CloseRendezvous(self.state.last_round))
            self.actions.append(act.EndJob(succeeded, reason, refused))


def _news(state: State) -> object:
    leaving = {w.worker_id: w.leaving for w in state.workers.values()}
    return state.pending_through, state.broken_through, state.stop, leaving
