"""How a job goes from one training to the next, and to the end of its script.

A script may train several times (`fit`, then `evaluate`, then another `fit`), and all workers run
the same script. The newest training that any worker has begun is the job's current one:

* The first `Joined` for training N+1 begins it. Its first round waits, for a time, for those that
  are still in the script's part before it; who comes later joins like any other newcomer.
* A worker that asks for a place in an older training, or in one that is finished, is sent on: it
  takes the result from the job directory and goes on with the script, up to the current training.
* A worker that is lost between two trainings is replaced when the next one begins. If none
  begins, the job ends when no worker is left that might begin one.
"""

from __future__ import annotations

import dataclasses

from hvd_elastic_keras import protocol
from hvd_elastic_keras.master import actions as act
from hvd_elastic_keras.master.rounds import RoundTransition
from hvd_elastic_keras.master.state import Worker, WorkerPhase


class TrainingTransition(RoundTransition):
    """The rules above."""

    def begin_training(self, number: int) -> None:
        """A worker has joined a newer training than all others before it."""
        for worker in list(self.workers.values()):
            if worker.training < number and worker.phase is not WorkerPhase.STARTING:
                # Also who has not finished: the result is on disk already.
                self.set_worker(worker.worker_id, phase=WorkerPhase.DONE)
        lost = self.state.lost_afterwards
        self.set(
            training=number,
            last_round_before=self.state.last_round,
            running=None,
            forming=None,
            finishing=False,
            waiting_since=None,
            newest_step=0,
            reading=None,
            own_errors=0,
            own_errors_step=0,
            lost_afterwards=(),
            errors_afterwards=(),
            script_ended=False,
        )
        if lost and not self.state.stop:
            self._replace_lost(", ".join(lost), number)

    def _replace_lost(self, lost: str, number: int) -> None:
        staying = [w for w in self.workers.values() if not w.leaving]
        missing = self.state.target_workers - len(staying)
        allowed = self.config.max_restarts - self.state.restarts_used
        count = max(0, min(missing, allowed))
        used = self.state.restarts_used + count
        self.set(restarts_used=used)
        for _ in range(count):
            self.launch(0.0, self.host_with_room())
        limit = self.config.max_restarts
        if count:
            what = "a replacement" if count == 1 else f"{count} replacements"
            which = f"restart {used}" if count == 1 else f"restarts {used - count + 1} to {used}"
            self.say(f"{lost} before training {number}; starting {what} ({which} of {limit})")
        elif missing > 0:
            self.say(
                f"{lost} before training {number}; no restart is left of {limit} (--max_restarts)"
            )

    def is_over_for(self, worker: Worker, request: protocol.EnterRequest) -> bool:
        """Whether the training that a worker wants a place in needs it no more."""
        return request.training < self.state.training or (
            worker.phase is WorkerPhase.DONE and request.training <= worker.training
        )

    def send_on(self, request: protocol.EnterRequest) -> None:
        """Tells a worker that its training is over."""
        worker = self.workers[request.worker_id]
        if request.failure:
            self.free_old_rounds()
        if worker.training <= request.training:
            self.set_worker(worker.worker_id, phase=WorkerPhase.DONE, training=request.training)
        self.tell_over(worker.worker_id)

    def free_old_rounds(self) -> None:
        """Lets collectives fail in which workers of an older training may hang."""
        last = self.state.last_round_before
        if last > self.state.broken_through:
            self.set(broken_through=last)
            self.actions.append(act.CloseRendezvous(last))

    def on_done(self, event: protocol.Done) -> None:
        worker = self.workers.get(event.worker_id)
        if worker is None or event.training != worker.training:
            return  # unknown, or it has joined the next training meanwhile
        self.set_worker(event.worker_id, phase=WorkerPhase.DONE, step=event.step)
        if event.training == self.state.training:
            forming = self.state.forming
            if forming and event.worker_id in forming.members:
                # It has met all members at the end: their confirmations are on the way.
                root_runs = forming.members[0] in forming.running
                step = forming.root_step if root_runs else event.step
                self.round_runs(dataclasses.replace(forming, root_step=step))
            elif forming and not forming.members:
                self.uncall(event.worker_id)
            self.set(finishing=True, newest_step=max(self.state.newest_step, event.step))

    def settle_training(self) -> None:
        """Sends on those who wait for a place in a training that is finished."""
        over_through = self.state.training - 1
        if self.training_over:
            over_through = self.state.training
            self.set(running=None, forming=None, waiting_since=None)
        if self.state.stop:
            return  # they have been told to leave
        for worker in list(self.workers.values()):
            entry = worker.entry
            if entry and worker.training <= over_through and entry.training <= over_through:
                self.set_worker(worker.worker_id, phase=WorkerPhase.DONE, entry=None)
                if not worker.leaving:
                    self.tell_over(worker.worker_id)

    def note_exit_afterwards(
        self, worker: Worker, cause: str, failed: bool, event: act.Exited
    ) -> None:
        """A worker has ended after it has finished the current training."""
        if not event.failed:
            self.set(script_ended=True)
            self.lower_target(worker)
        elif failed:
            self.note_lost(worker, cause)
            # Who has never trained with the others, a late joiner, does not decide for the job.
            if event.by_itself and worker.seniority is not None:
                error = (worker.seniority, worker.worker_id, cause)
                self.set(errors_afterwards=(*self.state.errors_afterwards, error))

    def note_lost(self, worker: Worker, cause: str) -> None:
        """A worker has failed, and is replaced only if there is another training."""
        text = f"{worker.worker_id} {cause}"
        self.set(
            lost_afterwards=(*self.state.lost_afterwards, text),
            last_failure=text,
            last_failed_worker=worker.worker_id,
        )

    def lower_target(self, worker: Worker) -> None:
        """The script of a worker has ended: nobody takes its place."""
        if not worker.leaving:
            self.change_slots(worker.host, -1)

    def launch(self, delay_s: float, host: str) -> str:
        """Starts a new worker in a slot of `host`; returns its id."""
        number = self.state.next_worker_number
        worker_id = f"w{number}"
        self.workers[worker_id] = Worker(worker_id, launched_at=self.now + delay_s, host=host)
        self.set(next_worker_number=number + 1)
        self.actions.append(act.Launch(worker_id, delay_s))
        return worker_id
