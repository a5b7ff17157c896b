"""Time limits: gives up workers that are silent, do not leave, do not enter or do not go on. Pure.

A worker may be silent and alive: code in C that keeps Python's lock (GIL) stops its heartbeats.

A worker that has computed its part of a step waits for the others in a collective. A worker that
does not come there, while others wait, holds them up: its callback, its input, its script or its
step hangs. A member that trains alone holds up newcomers if it does not come to the entrance.

Failures that are older than the window in which restarts are counted are forgotten here, too.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from hvd_elastic_keras.common import events, protocol
from hvd_elastic_keras.launchers.base import LOCALHOST
from hvd_elastic_keras.master.machine.lost_workers import evict, kill_overdue, lost_with
from hvd_elastic_keras.master.machine.phases import Confirming, Entering, Running
from hvd_elastic_keras.master.machine.restart_policy import still_counted
from hvd_elastic_keras.master.machine.slots import count_replacements, host_with_room, launch
from hvd_elastic_keras.master.machine.state import Worker, WorkerPhase
from hvd_elastic_keras.master.machine.transition import Transition, is_known_to_run, is_silent

TOLD_AFTER_S = 60.0
"""People are told of a worker after it has held others up for this many seconds, or for a tenth of
`stall_timeout_s` if that is shorter."""
LEAST_PATIENCE_S = 300.0
"""A worker may always compute its part of a step for this many seconds, unless `stall_timeout_s` is
shorter: something may have to be compiled."""
MOST_PARTS, LEAST_PARTS = 30, 3
"""A worker may compute a part for at most `MOST_PARTS` times as long as the longest part so far, if
that exceeds `LEAST_PATIENCE_S`. It may always compute for `LEAST_PARTS` times as long, whatever
`stall_timeout_s` is."""
STAGES = {
    "": "imports, data, model",
    protocol.TRACING: "tracing the step",
    protocol.READING: "reading up to the others",
}
"""What a starting worker does, by the phase that it tells; "" if it has not told any."""
SLOW_START_S = 60.0
"""People are told of a worker that starts for longer while others train or have trained."""


def hold_silence_limit(t: Transition, worker: Worker, silent_s: float) -> None:
    """Tells people of a worker that is silent though its process runs; replaces it in the end.

    A worker that is still starting has another limit: `hold_start_limits`.
    """
    limit_s = t.config.stall_timeout_s
    starting = worker.phase is WorkerPhase.STARTING
    if silent_s > limit_s and not starting:
        why = f"no heartbeat for {silent_s:.0f} s, though its process runs (--stall_timeout_s)"
        evict(t, worker.worker_id, why)
    elif not worker.told_silent and worker.last_heartbeat is not None:
        t.change_worker(worker.worker_id, told_silent=True)
        t.emit(events.WorkerStalled(worker_id=worker.worker_id, step=worker.step))
        later = "" if starting else f". It is replaced after {limit_s:.0f} s"
        t.say(
            f"{worker.worker_id} has sent no heartbeat for {silent_s:.0f} s, but its process runs: "
            "code in C that keeps Python's lock (GIL) takes long or hangs; "
            f"logs/{worker.worker_id}.log shows where{later}"
        )


def note_movement(t: Transition, worker: Worker, heartbeat: protocol.Heartbeat) -> None:
    """Notes when a worker has last come to another point of its training."""
    if heartbeat.point != worker.point:
        part_s = _stands_s(t, worker) if worker.computing else 0.0
        t.change_worker(
            worker.worker_id,
            point=heartbeat.point,
            in_collective=heartbeat.in_collective,
            computing=heartbeat.computing,
            longest_part_s=max(worker.longest_part_s, part_s),
            at_point_since=t.now,
            told_stalled=False,
        )


def hold_stall_limits(t: Transition) -> None:
    """Tells people of workers that hold others up, and replaces them when their time is over."""
    running = t.rounds.running
    if running is None:
        return
    members = [t.workers[name] for name in running.members if name in t.workers]
    waited_s = max((_stands_s(t, w) for w in members if _waits(t, w)), default=0.0)
    waited_s = max(waited_s, _newcomers_wait_s(t))
    part_s = max((w.longest_part_s for w in members), default=0.0)
    for worker in members:
        if waited_s > 0 and not _waits(t, worker):
            _hold_limit(t, worker, min(waited_s, _stands_s(t, worker)), part_s)


def _waits(t: Transition, worker: Worker) -> bool:
    """Whether a worker waits for others. A silent worker has gone on to something else since."""
    return worker.in_collective and not is_silent(t, worker)


def _newcomers_wait_s(t: Transition) -> float:
    """How long newcomers have waited at the entrance while no member has come to it."""
    match t.phase:
        case Entering(still_running=Running(members=members)) as entering:
            called = [t.workers[name] for name in entering.called]
            at_entrance = {worker.worker_id for worker in called if worker.entry}
            if at_entrance and at_entrance.isdisjoint(members):
                return t.now - entering.opened_at
    return 0.0


def _hold_limit(t: Transition, worker: Worker, held_up_s: float, part_s: float) -> None:
    told_s, limit_s = _limits_s(t.config.stall_timeout_s, part_s if worker.computing else None)
    where = f"has not come to step {worker.step}, for which the others wait"
    what = "its step" if worker.computing else "a callback or the input"
    if worker.computing:
        where = f"has not computed its part of step {worker.step}, for which the others wait"
    if held_up_s > limit_s:
        evict(t, worker.worker_id, f"{where}, within {limit_s:.0f} s (--stall_timeout_s)")
    elif held_up_s > told_s and not worker.told_stalled:
        t.change_worker(worker.worker_id, told_stalled=True)
        t.emit(events.WorkerStalled(worker_id=worker.worker_id, step=worker.step))
        t.say(
            f"{worker.worker_id} {where}, for {held_up_s:.0f} s: {what} takes long or hangs; "
            f"logs/{worker.worker_id}.log shows where. It is replaced after {limit_s:.0f} s"
        )


def _limits_s(stall_timeout_s: float, part_s: float | None) -> tuple[float, float]:
    """Returns after how many seconds people are told of a worker, and the worker is replaced.

    Args:
      part_s: the longest time that a part of a step has taken, if the worker computes one; None
        otherwise.
    """
    if part_s is None:
        return min(TOLD_AFTER_S, stall_timeout_s / 10), stall_timeout_s
    patience_s = min(stall_timeout_s, max(LEAST_PATIENCE_S, MOST_PARTS * part_s))
    limit_s = max(patience_s, LEAST_PARTS * part_s)
    return max(min(TOLD_AFTER_S, limit_s / 10), LEAST_PARTS / 2 * part_s), limit_s


def _stands_s(t: Transition, worker: Worker) -> float:
    return 0.0 if worker.at_point_since is None else t.now - worker.at_point_since


def hold_start_limits(t: Transition) -> None:
    """Tells people of workers that take long to start; replaces them when their time is over."""
    limit_s = t.config.start_up_timeout_s
    least_s = SLOW_START_S if t.rounds.running or t.training.finishing else 0.0
    slow: list[str] = []
    for worker in list(t.workers.values()):
        took_s = t.now - worker.launched_at
        if worker.phase is not WorkerPhase.STARTING or worker.leaving or worker.pending is not None:
            continue
        if took_s > limit_s and worker.activity != protocol.READING:
            why = f"has not come to its training within {limit_s:g} s (--start_up_timeout_s)"
            evict(t, worker.worker_id, why)
        elif took_s > (told_s := max(worker.start_told_s, least_s)):
            while told_s < took_s:
                told_s *= 2
            t.change_worker(worker.worker_id, start_told_s=told_s)
            slow.append(worker.worker_id)
    if slow:
        have = "have" if len(slow) > 1 else "has"
        since = min(t.workers[name].launched_at for name in slow)
        t.say(
            f"{', '.join(slow)} {have} been starting for {t.now - since:.0f} s "
            f"({what_they_do(t.workers[name] for name in slow)}); see logs/{slow[0]}.log"
        )


def what_they_do(starting: Iterable[Worker]) -> str:
    """Returns what starting workers are doing, for people."""
    by_stage: dict[str, list[str]] = {}
    for worker in starting:
        stage = STAGES.get(worker.activity, STAGES[""])
        by_stage.setdefault(stage, []).append(worker.worker_id)
    if len(by_stage) == 1:
        return next(iter(by_stage))
    return "; ".join(f"{', '.join(who)}: {stage}" for stage, who in by_stage.items())


def hold_time_limits(t: Transition) -> None:
    """Ends all workers whose time is over."""
    _evict_the_silent(t)
    _kill_the_overdue(t)
    _evict_those_who_do_not_enter(t)
    hold_stall_limits(t)
    hold_start_limits(t)
    forget_old_failures(t)


def _evict_the_silent(t: Transition) -> None:
    for worker in list(t.workers.values()):
        if worker.pending is not None:
            continue
        if worker.phase is WorkerPhase.DONE:
            continue  # it is in the user's own code, which may not let its threads run
        if worker.worker_id not in t.workers:
            continue  # it was given up together with another worker of its host
        heard_at, limit_s = worker.last_heartbeat, t.config.heartbeat_timeout_s
        if heard_at is None and (worker.by_itself or worker.host != LOCALHOST):
            # Nobody would tell if its process had never started.
            heard_at, limit_s = worker.launched_at, t.config.enter_timeout_s
        silent_s = t.now - (heard_at or t.now)
        if silent_s <= limit_s:
            continue
        if is_known_to_run(t, worker):
            hold_silence_limit(t, worker, silent_s)
        else:
            evict(t, worker.worker_id, f"no heartbeat for {silent_s:.0f} s")
            for other in lost_with(t, worker):
                evict(t, other.worker_id, f"its host {other.host} is silent", with_host=True)


def _kill_the_overdue(t: Transition) -> None:
    for worker in list(t.workers.values()):
        since, limit_s = worker.leaving_since, worker.leave_within_s
        if since is not None and limit_s is not None and t.now - since >= limit_s:
            kill_overdue(t, worker, limit_s)


def _evict_those_who_do_not_enter(t: Transition) -> None:
    forming = t.rounds.forming
    if forming is None:
        return
    since, missing = _awaited(t, forming)
    if since is None or t.now - since <= t.config.enter_timeout_s:
        return
    limit = f"{t.config.enter_timeout_s:.0f} s"
    for worker_id in sorted(missing):
        evict(t, worker_id, f"did not enter round {forming.number} within {limit}")


def _awaited(t: Transition, forming: Entering | Confirming) -> tuple[float | None, set[str]]:
    """Returns since when workers are awaited, and which are missing.

    The time is None if they may take their time.
    """
    if isinstance(forming, Confirming):
        return forming.assigned_at, set(forming.members) - forming.confirmed
    since = forming.first_entry_at
    if since is None and forming.still_running is None and forming.called:
        # After a break all workers come at once, unless all hang.
        since = forming.opened_at
    return since, {w for w in forming.called if not t.workers[w].entry}


def forget_old_failures(t: Transition) -> None:
    """Gives back the restarts of long ago, and fills slots for which no restart was left."""
    before = t.restarts.replacements
    kept = still_counted(t.config, before, t.now, t.training.progress)
    if len(kept) == len(before):
        return
    t.restarts = replace(t.restarts, replacements=kept)
    if not t.stop and not t.training.finishing:
        _fill_slots(t)


def _fill_slots(t: Transition) -> None:
    missing = sum(t.slots.values()) - len(t.staying)
    count = max(0, min(missing, t.config.max_restarts - t.restarts.used))
    if not count:
        return
    used = count_replacements(t, count)
    started = [launch(t, 0.0, host_with_room(t)) for _ in range(count)]
    t.say(
        f"earlier failures are long ago: starting {', '.join(started)} (restart {used} of "
        f"{t.config.max_restarts})"
    )
