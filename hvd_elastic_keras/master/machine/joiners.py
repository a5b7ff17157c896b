"""Workers that come by themselves: whether there is a place, and what their end means. Pure.

Somebody other than the launcher, such as a batch system or a person, starts them, and replaces them
if they fail. Each worker brings a slot on its host. The slot goes when the worker goes.
"""

from __future__ import annotations

from hvd_elastic_keras.common import events
from hvd_elastic_keras.common.config import JobConfig
from hvd_elastic_keras.common.joining import JoinRequest, Outcome
from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.slots import change_slots, lowest_slot
from hvd_elastic_keras.master.machine.state import State, Worker, WorkerPhase
from hvd_elastic_keras.master.machine.transition import Transition


def place_for(config: JobConfig, state: State, request: JoinRequest) -> tuple[str, str]:
    """Returns the id that a joiner gets, and the reason why it gets none; one of them is empty."""
    if request.worker_id:
        worker = state.workers.get(request.worker_id)
        if worker is None or worker.leaving:
            return "", f"this job waits for no worker {request.worker_id} (any more)"
        return request.worker_id, ""
    slots = state.target_workers
    if slots >= config.max_workers:
        return "", (
            f"the job has {slots} slots already, and max_workers={config.max_workers}. Start it "
            "with a larger --max_workers."
        )
    return f"w{state.next_worker_number}", ""


def register(t: Transition, event: act.Registered) -> None:
    """Adds a worker that has come by itself, with a slot of its own."""
    t.next_worker_number += 1
    change_slots(t, event.host, 1)
    slot = lowest_slot(t, event.host)
    t.workers[event.worker_id] = Worker(
        event.worker_id, launched_at=t.now, host=event.host, slot=slot, by_itself=True
    )
    t.emit(events.WorkerRegistered(worker_id=event.worker_id, host=event.host))


def outcome_of(state: State, worker_id: str, code: int | None) -> Outcome:
    """Returns what the end of a worker's process means for the job.

    The state is the one before the master hears of this end.
    """
    worker = state.workers.get(worker_id)
    if worker is None:
        return Outcome.EXPELLED
    if code:
        return Outcome.FAILED
    if worker.leaving or state.stop:
        return Outcome.LEFT
    return Outcome.FINISHED if worker.phase is WorkerPhase.DONE else Outcome.FAILED
