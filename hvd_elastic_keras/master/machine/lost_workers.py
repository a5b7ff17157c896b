"""The loss of a worker or host: what happens to its round, and whether it is replaced. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from hvd_elastic_keras.common import events
from hvd_elastic_keras.launchers.base import LOCALHOST
from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.actions import Outcome
from hvd_elastic_keras.master.machine.phases import Confirming, Entering
from hvd_elastic_keras.master.machine.reasons import (
    Departure,
    Evicted,
    Overdue,
    Reason,
    by_own_error,
    cause_of,
    failure_cause,
    failure_of,
    has_exited_well,
    has_failed,
    was_taken,
)
from hvd_elastic_keras.master.machine.restart_policy import (
    GiveUp,
    GoOn,
    Restart,
    after_failure,
    host_rest_s,
    together,
)
from hvd_elastic_keras.master.machine.rounds import break_round, name_cause, uncall
from hvd_elastic_keras.master.machine.slots import (
    change_slots,
    count_replacements,
    host_with_room,
    launch,
)
from hvd_elastic_keras.master.machine.state import Worker, WorkerPhase
from hvd_elastic_keras.master.machine.trainings import (
    end,
    free_old_rounds,
    lower_target,
    note_exit_afterwards,
    note_lost,
)
from hvd_elastic_keras.master.machine.transition import Transition, is_known_to_run, is_silent

TAKEN_EARLY_PAUSE_S = 5.0
"""Seconds before another worker is started, if a worker's machine is taken before the worker is
warm: the same may happen again."""
REPLACED_BY_OTHERS = "whoever started it may start another one"


def evict(t: Transition, worker_id: str, reason: str, *, with_host: bool = False) -> None:
    """Gives up a worker that does not answer."""
    t.actions.append(act.Kill(worker_id))
    depart(t, Evicted(worker_id, reason, with_host))


def kill_overdue(t: Transition, worker: Worker, limit_s: float) -> None:
    """Ends a worker that should have left by now."""
    t.say(f"{worker.worker_id} has not left within {limit_s:g} s ({worker.leaving}): it is killed")
    t.actions.append(act.Kill(worker.worker_id))
    depart(t, Overdue(worker.worker_id, limit_s))


def depart(t: Transition, departure: Departure) -> None:
    """Handles the end of a worker. A second report of it changes at most the restarts used."""
    worker = t.take_worker(departure.worker_id)
    if worker is None:
        if was_taken(departure):
            _forgive(t, departure)
        return
    fails_in_training = worker.raised_in == worker.training and by_own_error(departure)
    is_done = worker.phase is WorkerPhase.DONE and not fails_in_training
    expected = t.stopping or bool(worker.leaving)
    taken = was_taken(departure)
    failed = not (expected or taken) and (has_failed(departure) or not is_done)
    cause = _cause(worker, departure, expected or is_done)
    t.emit(
        events.WorkerExited(
            worker_id=worker.worker_id,
            pid=worker.pid,
            cause=cause,
            failed=failed,
            evicted=isinstance(departure, Evicted),
            step=worker.step,
        )
    )
    if t.ended:
        return
    if has_failed(departure):
        free_old_rounds(t)
    if not is_done:
        planned = expected and not has_failed(departure)
        stood_since = _stood_since(t, worker) if isinstance(departure, Evicted) else None
        _take_out_of_round(t, Reason(cause, worker.worker_id), planned, stood_since)
    if is_done and worker.training == t.training.number:
        note_exit_afterwards(t, worker, departure, failed)
    elif failed:
        _note_failure(t, worker, departure)
    elif taken and not expected:
        t.say(f"{worker.worker_id} {cause}")
        _start_another(t, worker)
    elif is_done:
        lower_target(t, worker)


def _stood_since(t: Transition, worker: Worker) -> float | None:
    """Returns since when an evicted worker has been silent, or has stood at the same point."""
    return worker.last_heartbeat if is_silent(t, worker) else worker.at_point_since


def _cause(worker: Worker, departure: Departure, expected: bool) -> str:
    if has_failed(departure):
        return cause_of(departure)
    if worker.leaving:
        return f"left: {worker.leaving}"
    if expected:
        return "finished" if worker.phase is WorkerPhase.DONE else "left: the job stops"
    return failure_cause(departure)


def _take_out_of_round(
    t: Transition, reason: Reason, planned: bool, stood_since: float | None
) -> None:
    worker_id = reason.worker_id
    if _breaks_round(t, worker_id, planned):
        break_round(t, reason, stood_since)
    entering = t.phase
    if isinstance(entering, Entering) and worker_id in entering.called:
        uncall(t, entering, worker_id)
        if not planned and reason not in entering.reasons:
            name_cause(t, reason)


def _breaks_round(t: Transition, worker_id: str, planned: bool) -> bool:
    """Whether collectives wait for this worker. If all stop for a planned change, they do not."""
    if isinstance(t.phase, Confirming) and worker_id in t.phase.members:
        return True
    running = t.rounds.running
    if running is None or worker_id not in running.members:
        return False
    return not planned or running.number > t.rounds.pending_through


def _note_failure(t: Transition, worker: Worker, departure: Departure) -> None:
    """Handles the failure of a worker that the training needs."""
    if worker.by_itself:
        lower_target(t, worker)
    if t.training.finishing:
        note_lost(t, departure)
        return
    starting = worker.phase is WorkerPhase.STARTING
    _count_failure(t, departure, worker)
    if starting and has_exited_well(departure) and not _ready_others(t):
        end(
            t,
            Outcome.FAILED,
            f"{worker.worker_id} ended without having trained. A script must call model.fit "
            "(with ElasticCallback() among its callbacks if it imports that), elastic.run or "
            "Trainer(...).fit(). A module with model() and dataset() is given with --model, and "
            "must not end the program.",
        )
    else:
        _replace(t, worker, departure)


def _ready_others(t: Transition) -> int:
    """Returns how many staying workers are not starting any more."""
    return sum(worker.phase is not WorkerPhase.STARTING for worker in t.staying)


def _count_failure(t: Transition, departure: Departure, worker: Worker) -> None:
    newest, before = t.training.newest_step, t.restarts
    went_on = newest > before.own_errors_step
    own_errors = 0 if went_on else before.own_errors
    if worker.phase is WorkerPhase.STARTING:
        _count_failed_start(t, departure, worker)
    else:
        own_errors += by_own_error(departure)
        t.restarts = replace(before, start_failures=0, start_failed_at=None, start_errors=0)
    t.restarts = replace(
        t.restarts,
        own_errors=own_errors,
        own_errors_step=newest,
        first_failure=departure if went_on else before.first_failure or departure,
        last_failure=departure,
    )


def _count_failed_start(t: Transition, departure: Departure, worker: Worker) -> None:
    before = t.restarts
    again = not together(before.start_failed_at, worker.launched_at, t.now)
    by_itself = by_own_error(departure) or has_exited_well(departure)
    t.restarts = replace(
        before,
        start_failures=before.start_failures + again,
        start_failed_at=t.now if again else before.start_failed_at,
        start_errors=before.start_errors + 1 if by_itself else 0,
    )


def _place_of_replacement(t: Transition, failed: str) -> tuple[str, float]:
    """Returns a host for a replacement, and the seconds for which the host rests before.

    If the host `failed` would rest, another one is preferred. The only host of a job never rests:
    no worker could go on meanwhile.
    """
    rest_s = host_rest_s(t.restarts.replacements, failed, t.now) if len(t.slots) > 1 else 0.0
    host = host_with_room(t, failed, avoided=failed if rest_s else "")
    return host, rest_s if host == failed else 0.0


def _start_another(t: Transition, worker: Worker) -> None:
    """Starts a worker in place of one whose machine was taken; this is no restart."""
    if not t.training.finishing:
        launch(t, TAKEN_EARLY_PAUSE_S if worker.phase is WorkerPhase.STARTING else 0.0, worker.host)


def _forgive(t: Transition, departure: Departure) -> None:
    """Takes back the restart of a worker that seemed to have failed: it had lost its machine."""
    counted = [r for r in t.restarts.replacements if r.failed != departure.worker_id]
    if len(counted) < t.restarts.used and not t.ended:
        start_failures = max(0, t.restarts.start_failures - 1)
        t.restarts = replace(t.restarts, replacements=tuple(counted), start_failures=start_failures)
        t.say(f"{departure.worker_id} {cause_of(departure)}: its restart does not count")


def _is_lost_with_host(departure: Departure) -> bool:
    return isinstance(departure, Evicted) and departure.with_host


def _replace(t: Transition, worker: Worker, departure: Departure) -> None:
    others = _ready_others(t)
    decision = after_failure(t.config, t.restarts, t.training.number, others)
    if worker.by_itself and not isinstance(decision, GiveUp):
        decision = GoOn(REPLACED_BY_OTHERS)
    match decision:
        case Restart(delay_s=delay_s):
            # A host that is lost with all of its workers counts as one failure.
            count = 0 if _is_lost_with_host(departure) else 1
            used = count_replacements(t, count, worker.host, worker.worker_id)
            host, rest_s = _place_of_replacement(t, worker.host)
            later_s = max(delay_s, rest_s)
            when = f" in {later_s:.0f} s" if later_s else ""
            why = f", as workers on {host} fail again and again" if rest_s else ""
            which = f"restart {used} of {t.config.max_restarts}"
            t.say(f"{failure_of(departure)}; starting a replacement{when}{why} ({which})")
            launch(t, later_s, host)
        case GiveUp(reason=reason):
            end(t, Outcome.FAILED, reason)
        case GoOn(reason=reason):
            t.say(f"{failure_of(departure)}; {reason}")


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
