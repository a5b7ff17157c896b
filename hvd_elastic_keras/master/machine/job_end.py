"""The rules by which a job ends. Pure."""

from __future__ import annotations

import dataclasses

from hvd_elastic_keras.common import events, protocol
from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.actions import Outcome
from hvd_elastic_keras.master.machine.departure import Departure, failure_of, first_and_last
from hvd_elastic_keras.master.machine.phases import Ended
from hvd_elastic_keras.master.machine.state import Finish, WorkerPhase, training_is_over
from hvd_elastic_keras.master.machine.transition import Transition


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
        t.rounds = dataclasses.replace(t.rounds, waiting_since=t.now)
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
    t.restarts = dataclasses.replace(t.restarts, first_failure=error, last_failure=error)
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
        end(t, Outcome.FAILED, "all workers have left before the training was finished.")
