"""How a job goes from one training to the next, and to its end. Pure.

A script may train several times (`fit`, then `evaluate`, then another `fit`), and all workers run
the same script. The newest training that any worker has begun is the job's current one:

* The first `Joined` for training N+1 begins it. Its first round waits, for a time, for workers that
  are still in the script's part before it. A worker that comes later joins like any other newcomer.
* A worker that asks for a place in an older training, or in one that is finished, is sent on: it
  takes the result from the job directory and goes on with the script, up to the current training.
* A worker that is lost between two trainings is replaced when the next training begins. If none
  begins, the job ends when no worker is left that might begin one.
"""

from __future__ import annotations

from msgspec.structs import replace

from hvd_elastic_keras.common import events, protocol
from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.actions import Outcome
from hvd_elastic_keras.master.machine.phases import Confirming, Ended, Entering, Waiting
from hvd_elastic_keras.master.machine.reasons import (
    Departure,
    by_own_error,
    failure_of,
    first_and_last,
    has_failed,
)
from hvd_elastic_keras.master.machine.rounds import run_round, uncall
from hvd_elastic_keras.master.machine.slots import (
    change_slots,
    count_replacements,
    host_with_room,
    launch,
)
from hvd_elastic_keras.master.machine.state import (
    Finish,
    Training,
    Worker,
    WorkerPhase,
    training_is_over,
)
from hvd_elastic_keras.master.machine.transition import Transition


def begin_training(t: Transition, number: int) -> None:
    """Begins a training: a worker is the first to join it."""
    for worker in list(t.workers.values()):
        if worker.training < number and worker.phase is not WorkerPhase.STARTING:
            # This includes workers that have not finished: the result is on disk already.
            t.change_worker(worker.worker_id, phase=WorkerPhase.DONE)
    finish = t.training.finish
    t.training = Training(number, rounds_before=t.rounds.last_number)
    t.rounds = replace(t.rounds, phase=Waiting(), waiting_since=None)
    t.restarts = replace(t.restarts, own_errors=0, own_errors_step=0, first_failure=None)
    if finish and finish.lost and not t.stop:
        _replace_lost(t, ", ".join(map(failure_of, finish.lost)), number)


def _replace_lost(t: Transition, lost: str, number: int) -> None:
    missing = sum(t.slots.values()) - len(t.staying)
    limit = t.config.max_restarts
    count = max(0, min(missing, limit - t.restarts.used))
    used = count_replacements(t, count)
    for _ in range(count):
        launch(t, 0.0, host_with_room(t))
    if count:
        what = "a replacement" if count == 1 else f"{count} replacements"
        which = f"restart {used}" if count == 1 else f"restarts {used - count + 1} to {used}"
        t.say(f"{lost} before training {number}; starting {what} ({which} of {limit})")
    elif missing > 0:
        t.say(f"{lost} before training {number}; no restart is left of {limit} (--max_restarts)")


def note_step(t: Transition, training: int, step: int) -> None:
    """Notes that a worker has come to `step` of a training."""
    if training == t.training.number and step > t.training.newest_step:
        t.training = replace(t.training, newest_step=step)


def is_over_for(t: Transition, worker: Worker, training: int) -> bool:
    """Whether a training in which a worker wants a place is over for this worker."""
    return training < t.training.number or (
        worker.phase is WorkerPhase.DONE and training <= worker.training
    )


def send_on(t: Transition, worker: Worker, request: protocol.EnterRequest) -> None:
    """Tells a worker that its training is over."""
    if request.failure:
        free_old_rounds(t)
    if worker.training <= request.training:
        t.change_worker(worker.worker_id, phase=WorkerPhase.DONE, training=request.training)
    t.tell_over(request)


def free_old_rounds(t: Transition) -> None:
    """Lets the collectives of older trainings fail: workers may hang in them."""
    last = t.training.rounds_before
    if last > t.rounds.broken_through:
        t.rounds = replace(t.rounds, broken_through=last)
        t.actions.append(act.CloseRendezvous(last))


def finish_training(t: Transition, event: protocol.Done) -> None:
    """Notes that a worker has finished a training, together with all members of its round."""
    worker = t.workers.get(event.worker_id)
    if worker is None or event.training != worker.training:
        return  # unknown, or it has joined the next training meanwhile
    t.change_worker(event.worker_id, phase=WorkerPhase.DONE, step=event.step)
    if event.training != t.training.number:
        return
    match t.phase:
        case Confirming() as confirming if event.worker_id in confirming.members:
            # The worker has met all members at the end: their confirmations are on the way.
            root_runs = confirming.members[0] in confirming.confirmed
            step = confirming.root_step if root_runs else event.step
            run_round(t, replace(confirming, root_step=step))
        case Entering() as entering:
            uncall(t, entering, event.worker_id)
    note_step(t, event.training, event.step)
    if event.raised:
        # It is finished if the script catches the error: if a worker comes to the script's end.
        t.change_worker(event.worker_id, raised_in=event.training)
    else:
        _set_finish(t, _finish_of(t))


def settle_training(t: Transition) -> None:
    """Sends on the workers that wait for a place in a training that is finished."""
    over_through = t.training.number - 1
    if training_is_over(t.training, t.workers):
        over_through = t.training.number
        t.rounds = replace(t.rounds, phase=Waiting(), waiting_since=None)
    if t.stop:
        return  # all workers have been told to leave
    for worker in list(t.workers.values()):
        entry = worker.entry
        if entry and worker.training <= over_through and entry.training <= over_through:
            t.change_worker(worker.worker_id, phase=WorkerPhase.DONE, entry=None)
            if not worker.leaving:
                t.tell_over(entry)


# --- lost after a training ---------------------------------------------------------------


def note_exit_afterwards(t: Transition, worker: Worker, departure: Departure, failed: bool) -> None:
    """Notes the end of a worker that had finished the current training."""
    if not has_failed(departure):
        _set_finish(t, replace(_finish_of(t), script_ended=True))
        lower_target(t, worker)
    elif failed:
        note_lost(t, departure)
        # A late joiner that has never trained with the others does not decide for the job.
        if by_own_error(departure) and worker.seniority is not None:
            errors = {**_finish_of(t).errors, worker.seniority: departure}
            _set_finish(t, replace(_finish_of(t), errors=errors))


def note_lost(t: Transition, departure: Departure) -> None:
    """Notes a failed worker that is replaced only if there is another training."""
    lost = (*_finish_of(t).lost, departure)
    _set_finish(t, replace(_finish_of(t), lost=lost))
    t.restarts = replace(t.restarts, first_failure=lost[0], last_failure=departure)


def _finish_of(t: Transition) -> Finish:
    return t.training.finish or Finish()


def _set_finish(t: Transition, finish: Finish) -> None:
    t.training = replace(t.training, finish=finish)


def lower_target(t: Transition, worker: Worker) -> None:
    """Removes the slot of a worker that is gone, so that no other worker takes its place.

    If the worker was asked to leave, its slot is gone already.
    """
    if not worker.leaving:
        change_slots(t, worker.host, -1)


def end(t: Transition, outcome: Outcome, reason: str) -> None:
    """Ends the job, unless it has ended already."""
    if t.ended:
        return
    t.job = Ended(t.stop or reason)
    for worker in t.workers.values():
        if worker.entry:
            t.dismiss(worker.worker_id, reason)
    t.actions.append(act.CloseRendezvous(t.rounds.last_number))
    t.actions.append(act.EndJob(outcome, reason))


def end_if_over(t: Transition) -> None:
    """Ends a job in which nothing will happen any more."""
    if t.ended:
        return
    if t.training.finish and training_is_over(t.training, t.workers):
        _end_with_the_script(t, t.training.finish)
    elif not t.workers and (t.stop or not t.config.awaits_joiners):
        _end_without_workers(t)
    elif not t.workers and t.rounds.waiting_since is None:
        t.rounds = replace(t.rounds, waiting_since=t.now)
        t.emit(events.Waiting(workers=0, min_workers=t.config.min_workers))
        t.say("waiting: no worker is here; start one with `run --join`")
    elif t.rounds.waiting_since is not None and not t.stop:
        _end_if_waited_too_long(t, t.now - t.rounds.waiting_since)


def _end_if_waited_too_long(t: Transition, waited_s: float) -> None:
    if waited_s > t.config.wait_timeout_s:
        end(
            t,
            Outcome.FAILED,
            f"fewer than {t.config.min_workers} workers for {waited_s:.0f} s "
            "(wait_timeout_s). Lower --min_workers or raise --max_restarts.",
        )


def _end_with_the_script(t: Transition, finish: Finish) -> None:
    """Ends the job when all workers have come to the end of the script, or are lost.

    The job goes on while a worker is left that has trained: it may train again. A worker that is
    still starting does not count: it could only repeat the script.
    """
    if any(w.phase is not WorkerPhase.STARTING for w in t.workers.values()):
        return
    if finish.errors:
        _end_with_error(t, finish.errors[min(finish.errors)])
    elif finish.script_ended:
        end(t, Outcome.FINISHED, protocol.FINISHED)
    elif not t.workers and t.stop:
        end(t, Outcome.STOPPED, t.stop)
    elif not t.workers:
        lost = ", ".join(map(failure_of, finish.lost))
        end(
            t,
            Outcome.FAILED,
            "the training is finished, but no worker has come to the end of the script: " + lost,
        )


def _end_with_error(t: Transition, error: Departure) -> None:
    t.restarts = replace(t.restarts, first_failure=error, last_failure=error)
    end(t, Outcome.FAILED, f"{failure_of(error)} after the training")


def _end_without_workers(t: Transition) -> None:
    if t.stop:
        end(t, Outcome.STOPPED, t.stop)
    elif t.restarts.last_failure and sum(t.slots.values()) > 0:
        end(
            t,
            Outcome.FAILED,
            f"no worker is left and all {t.config.max_restarts} restarts are used up; "
            f"{first_and_last(t.restarts.first_failure, t.restarts.last_failure)}. "
            "Raise --max_restarts if the workers' logs show nothing wrong.",
        )
    else:
        end(
            t,
            Outcome.FAILED,
            "all workers have left before the training was finished. `run --resume` with this "
            "--job_dir goes on from the newest checkpoint.",
        )
