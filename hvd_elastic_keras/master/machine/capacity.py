"""How many workers a round takes, and which workers there are for it. Pure."""

from __future__ import annotations

from hvd_elastic_keras.master.machine.state import Worker, WorkerPhase
from hvd_elastic_keras.master.machine.transition import Transition


def useful_workers(t: Transition) -> int:
    """Returns how many workers the micro-batches of a step give work to; 0 is no limit."""
    return 0 if t.training.batch_grows else t.training.num_micro_batches or 0


def most_members(t: Transition) -> int:
    """Returns the largest number of members of a round."""
    return min(t.config.max_workers, useful_workers(t) or t.config.max_workers)


def least_members(t: Transition) -> int:
    """Returns the smallest number of members with which a round begins."""
    # Once a worker has finished, the others only have to finish, too.
    return 1 if t.training.finishing else t.config.min_workers


def more_are_coming(t: Transition) -> bool:
    """Whether more workers may soon come to the entrance of the current training."""
    return any(_comes(t, worker) for worker in t.workers.values() if not worker.entry)


def _comes(t: Transition, worker: Worker) -> bool:
    if worker.phase is WorkerPhase.DONE:
        # It is in the part of the script before the current training.
        return worker.training < t.training.number and not worker.leaving
    return worker.phase in (WorkerPhase.STARTING, WorkerPhase.READY) and not worker.pending


def staying_members(t: Transition) -> list[str]:
    """Members of the running round that neither leave nor have finished, by rank."""
    running = t.rounds.running
    return [m for m in (running.members if running else ()) if _still_trains(t, m)]


def _still_trains(t: Transition, worker_id: str) -> bool:
    worker = t.workers.get(worker_id)
    return worker is not None and not worker.leaving and worker.phase is not WorkerPhase.DONE


def waiting_workers(t: Transition) -> list[str]:
    """Warm workers at the entrance that are not called to a round, oldest first."""
    ready = [w for w in t.staying if w.entry and _is_ready(t, w)]
    return [w.worker_id for w in sorted(ready, key=lambda w: w.number)]


def _is_ready(t: Transition, worker: Worker) -> bool:
    return worker.phase is WorkerPhase.READY and worker.training == t.training.number
