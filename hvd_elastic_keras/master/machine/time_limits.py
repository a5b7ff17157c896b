"""Time limits. Gives up workers that are silent, do not leave or do not enter their round. Pure.

Also forgets failures that are older than the window in which restarts are counted.
"""

from __future__ import annotations

from msgspec.structs import replace

from hvd_elastic_keras.launchers.base import LOCALHOST
from hvd_elastic_keras.master.machine.failed_hosts import lost_with
from hvd_elastic_keras.master.machine.lost_workers import evict, kill_overdue
from hvd_elastic_keras.master.machine.phases import Confirming, Entering
from hvd_elastic_keras.master.machine.restart_policy import still_counted
from hvd_elastic_keras.master.machine.silence import is_known_to_run
from hvd_elastic_keras.master.machine.slots import count_replacements, host_with_room, launch
from hvd_elastic_keras.master.machine.stalls import (
    hold_silence_limit,
    hold_stall_limits,
    hold_start_limits,
)
from hvd_elastic_keras.master.machine.state import WorkerPhase
from hvd_elastic_keras.master.machine.transition import Transition


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
