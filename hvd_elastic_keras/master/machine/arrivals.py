"""Workers start, become warm, ask for a place in a round and tell of their progress. Pure."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from hvd_elastic_keras.common import events, protocol
from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.actions import Outcome
from hvd_elastic_keras.master.machine.phases import Confirming, Entering, Running, Stall
from hvd_elastic_keras.master.machine.reasons import lost_contact
from hvd_elastic_keras.master.machine.rounds import break_round, confirm
from hvd_elastic_keras.master.machine.slots import take_back
from hvd_elastic_keras.master.machine.state import Worker, WorkerPhase
from hvd_elastic_keras.master.machine.time_limits import note_movement
from hvd_elastic_keras.master.machine.trainings import (
    begin_training,
    end,
    is_over_for,
    note_step,
    send_on,
)
from hvd_elastic_keras.master.machine.transition import Transition, most_members


def note_start(t: Transition, event: act.Started) -> None:
    """Notes that the process of a worker was started."""
    t.change_worker(event.worker_id, host=event.host, pid=event.pid)
    t.emit(events.WorkerStarted(worker_id=event.worker_id, host=event.host, pid=event.pid))


def note_pending(t: Transition, event: act.Pending) -> None:
    """Notes that a worker waits for its machine, or has got it.

    People hear of each reason once. The time limit for the start begins when the worker has its
    machine.
    """
    worker = t.workers.get(event.worker_id)
    if worker is None or worker.phase is not WorkerPhase.STARTING:
        return
    if worker.pending == event.reason:
        return
    t.change_worker(event.worker_id, pending=event.reason, launched_at=t.now)
    if event.reason:
        t.emit(events.WorkerPending(worker_id=event.worker_id, reason=event.reason))
        t.say(f"{event.worker_id} waits: {event.reason}")
    elif worker.pending:
        t.emit(events.WorkerPending(worker_id=event.worker_id, reason=""))
        t.say(f"{event.worker_id} has a place now")


# --- warm --------------------------------------------------------------------------------


def join(t: Transition, event: protocol.Joined) -> None:
    """Notes that a worker is warm for a training."""
    worker = t.workers.get(event.worker_id)
    if worker is None or event.training <= worker.training:
        return  # unknown, or sent twice
    t.change_worker(
        event.worker_id,
        phase=WorkerPhase.READY,
        training=event.training,
        entry=worker.entry if worker.phase is WorkerPhase.STARTING else None,
        step=0,
        pid=event.pid,
        ready_at=t.now,
        last_heartbeat=t.now,
    )
    t.restarts = replace(t.restarts, start_failures=0, start_failed_at=None, start_errors=0)
    if event.training > t.training.number:
        begin_training(t, event.training)
    _emit_ready(t, worker, event)
    if event.training == t.training.number:
        _note_batch(t, event)


def _emit_ready(t: Transition, before: Worker, event: protocol.Joined) -> None:
    is_new = before.phase is WorkerPhase.STARTING
    start_up_s = round(t.now - before.launched_at, 3)
    t.emit(
        events.WorkerReady(
            worker_id=event.worker_id,
            pid=event.pid,
            training=event.training,
            start_up_s=start_up_s if is_new else msgspec.UNSET,
            warm_up_s=round(event.warm_up_s, 3),
        )
    )


def _note_batch(t: Transition, event: protocol.Joined) -> None:
    number = event.num_micro_batches
    t.training = replace(t.training, num_micro_batches=number, batch_grows=event.each)
    if most_members(t) < t.config.min_workers:
        end(
            t,
            Outcome.FAILED,
            f"min_workers={t.config.min_workers} was given, but a global batch has only "
            f"{number} micro-batches and max_workers is "
            f"{t.config.max_workers}. Use a smaller --min_workers or micro_batch_size.",
        )


# --- at the entrance ---------------------------------------------------------------------


def enter(t: Transition, request: protocol.EnterRequest) -> None:
    """Handles a worker's request for a place in the next round."""
    worker = t.workers.get(request.worker_id)
    if worker is None:
        t.dismiss(request.worker_id, protocol.NO_WORKER)
    elif t.stop or worker.leaving:
        t.dismiss(request.worker_id, worker.leaving or t.stop)
    elif is_over_for(t, worker, request.training):
        send_on(t, worker, request)
    elif place := _place_on_the_way(t, request):
        # The answer with its place was lost.
        t.give_place(request, place)
    else:
        if request.training > worker.training:
            _take_for_joined(t, worker, request)
        _wait_for_place(t, request)


def _take_for_joined(t: Transition, worker: Worker, request: protocol.EnterRequest) -> None:
    """Notes that a worker has joined: it did so before it asked, but the journal has lost that."""
    t.change_worker(
        worker.worker_id, phase=WorkerPhase.READY, training=request.training, ready_at=t.now
    )
    if request.training > t.training.number:
        begin_training(t, request.training)


def _place_on_the_way(t: Transition, request: protocol.EnterRequest) -> protocol.Assignment | None:
    """Returns the place of a worker in a round that it does not know of yet."""
    match t.phase:
        case Confirming(number=number, places=places) if request.from_round < number:
            return places.get(request.worker_id)
    return None


def _wait_for_place(t: Transition, request: protocol.EnterRequest) -> None:
    t.change_worker(request.worker_id, entry=request, step=request.step, last_heartbeat=t.now)
    note_step(t, request.training, request.step)
    if _has_lost_contact(t, request):
        break_round(t, lost_contact(request.worker_id))
    entering = t.phase
    if isinstance(entering, Entering) and request.worker_id in entering.called:
        t.phase = replace(
            entering,
            first_entry_at=_first_entry(t, entering, request),
            stall=_stall(t, entering, request),
        )


def _has_lost_contact(t: Transition, request: protocol.EnterRequest) -> bool:
    """Whether this worker knows of a failure that the master has not heard of yet."""
    match t.phase:
        case Running(members=members):
            return request.worker_id in members
        case Entering(still_running=Running(number=number)):
            # The others may hang in the collective that failed for this worker.
            return bool(request.failure) and request.from_round == number
        case Confirming(number=number, members=members):
            return request.worker_id in members and request.from_round >= number
    return False


def _first_entry(t: Transition, entering: Entering, request: protocol.EnterRequest) -> float | None:
    """Returns when the first awaited worker came; None if the others may still take their time.

    Members that train on come when their step ends. They are not late before one of them has come.
    """
    before = entering.still_running
    if before and request.worker_id not in before.members:
        return entering.first_entry_at
    return entering.first_entry_at or t.now


def _stall(t: Transition, entering: Entering, request: protocol.EnterRequest) -> Stall | None:
    """Returns the stall. It began when the first member of the old round took its last step."""
    before, stall = entering.still_running, entering.stall
    if request.worker_id not in t.rounds.last_members:
        return stall
    if before:
        stall = stall or Stall(t.now, ran_since=before.since)
    return stall and stall.begun(t.now - request.idle_s)


# --- in a round --------------------------------------------------------------------------


def note_running(t: Transition, event: protocol.Running) -> None:
    """Notes that a member confirms that it runs."""
    confirming = t.phase
    if (
        isinstance(confirming, Confirming)
        and event.round == confirming.number
        and event.worker_id in confirming.members
    ):
        t.change_worker(
            event.worker_id, step=event.step, last_heartbeat=t.now, activity=event.phase
        )
        confirm(t, confirming, event.worker_id, event.step)


def note_heartbeat(t: Transition, event: protocol.Heartbeat) -> None:
    """Notes that a worker is alive, and how far it is."""
    worker = t.workers.get(event.worker_id)
    if worker is None:
        return
    t.change_worker(
        event.worker_id,
        last_heartbeat=t.now,
        activity=event.phase,
        cores=event.cores,
        memory_bytes=event.memory_bytes,
        told_silent=False,
    )
    note_movement(t, worker, event)
    if event.training == worker.training:
        t.change_worker(event.worker_id, step=event.step)
        if (running := t.rounds.running) and event.worker_id in running.members:
            note_step(t, event.training, event.step)
        _note_reading(t, event.reading)


def note_life(t: Transition, event: protocol.Alive) -> None:
    """Notes that the process of a worker runs."""
    if event.worker_id in t.workers:
        t.change_worker(event.worker_id, alive_at=t.now)


def _note_reading(t: Transition, position: protocol.InputPosition | None) -> None:
    known = t.training.reading
    if (
        position is not None
        and position.training == t.training.number
        and (known is None or position.progress > known.progress)
    ):
        t.training = replace(t.training, reading=position)


def note_refusal(t: Transition, event: protocol.Refused) -> None:
    """Handles a worker that ends because something is configured wrongly.

    A worker that has never been in a round that ran gives its slot back, and those that have been
    go on. Otherwise, the job ends: its other workers would find the same mistake.
    """
    worker = t.workers.get(event.worker_id)
    if worker is None or t.stop:
        return
    t.emit(events.WorkerRefused(worker_id=event.worker_id, message=event.message))
    others = [w for w in t.staying if w.worker_id != event.worker_id]
    if worker.seniority is None and any(w.seniority is not None for w in others):
        t.say(
            f"{event.worker_id} cannot take part, and the others go on without it: {event.message}"
        )
        take_back(t, [event.worker_id], "its data or configuration are not those of the others")
    else:
        note_step(t, worker.training, event.step)
        end(t, Outcome.REFUSED, event.message)
