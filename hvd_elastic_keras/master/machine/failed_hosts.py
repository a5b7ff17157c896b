"""Hosts on which no worker can be started, and hosts that are lost with all their workers. Pure."""

from __future__ import annotations

from hvd_elastic_keras.common import events
from hvd_elastic_keras.launchers.base import LOCALHOST
from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.actions import Outcome
from hvd_elastic_keras.master.machine.silence import is_known_to_run
from hvd_elastic_keras.master.machine.slots import change_slots
from hvd_elastic_keras.master.machine.state import Worker, WorkerPhase
from hvd_elastic_keras.master.machine.trainings import end
from hvd_elastic_keras.master.machine.transition import Transition

SILENT_TOGETHER_S = 3.0
"""When one worker of a host is given up for its silence, all are, if all have been silent for this
many seconds."""


def note_failed_host(t: Transition, event: act.HostFailed) -> None:
    """Takes back the slots of workers that cannot come. Workers that train on the host stay."""
    if event.worker_id not in t.workers:
        return
    lost = [w for w in t.workers.values() if w.host == event.host and w.last_heartbeat is None]
    for worker in lost:
        del t.workers[worker.worker_id]
        t.emit(
            events.WorkerExited(
                worker_id=worker.worker_id,
                pid=worker.pid,
                cause=f"could not be started: {event.reason}",
                failed=True,
                step=worker.step,
            )
        )
    change_slots(t, event.host, -len(lost))
    t.emit(
        events.SlotsRevoked(
            host=event.host,
            slots=len(lost),
            deadline_s=None,
            workers=[w.worker_id for w in lost],
            reason=event.reason,
        )
    )
    if t.stop:
        return  # these workers were ended while they started
    if t.workers or t.training.number:
        t.say(f"{event.reason}; it is tried again in {event.pause_s:.0f} s")
    else:
        end(t, Outcome.FAILED, f"no worker could be started: {event.reason}")


def _speaks(t: Transition, worker: Worker) -> bool:
    """Whether a worker, or the process that looks after it, was heard of just now."""
    heard_at = worker.last_heartbeat or 0.0
    return t.now - heard_at < SILENT_TOGETHER_S or is_known_to_run(t, worker)


def lost_with(t: Transition, worker: Worker) -> list[Worker]:
    """Returns the workers that are lost together with a silent one.

    These are the other workers of its host that have not finished, if no worker of the host speaks.
    There are none on this machine, or if each worker has a machine of its own.
    """
    on_host = (w for w in t.workers.values() if w.host == worker.host)
    there = [w for w in on_host if w.last_heartbeat is not None]
    silent = not any(_speaks(t, w) for w in there)
    if t.config.own_machines or worker.host == LOCALHOST or not silent:
        return []
    return [w for w in there if w.phase is not WorkerPhase.DONE]
