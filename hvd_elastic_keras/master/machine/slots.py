"""Slots: how many workers a job may run on each host, granted and revoked from outside. Pure.

A worker occupies a slot from its launch until it is gone. A failed worker is replaced in its slot.
A revoked slot is gone at once. Its worker leaves after the current step, and is killed if it has
not left within the time that the request allows. A worker that is asked to leave in another way
(`ctl remove`, SIGTERM) takes its slot with it.

A joiner is started and replaced by somebody other than the launcher, such as a batch system or a
person. It brings a slot on its host. The slot goes when the worker goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from hvd_elastic_keras.common import events, protocol
from hvd_elastic_keras.common.control import JoinRequest, Outcome
from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.phases import Confirming, Entering
from hvd_elastic_keras.master.machine.reasons import REVOKED, Reason, joins, leaves
from hvd_elastic_keras.master.machine.rounds import open_round, uncall
from hvd_elastic_keras.master.machine.state import Replacement, State, Worker, WorkerPhase
from hvd_elastic_keras.master.machine.transition import Transition
from hvd_elastic_keras.settings.job_config import JobConfig

NEVER_JOINED = "the joining worker left before it joined"


def launch(t: Transition, delay_s: float, host: str) -> str:
    """Starts a new worker in a slot of `host`; returns its id."""
    worker_id = f"w{t.next_worker_number}"
    t.next_worker_number += 1
    slot = lowest_slot(t, host)
    t.workers[worker_id] = Worker(worker_id, launched_at=t.now + delay_s, host=host, slot=slot)
    t.actions.append(act.Launch(worker_id, host, delay_s))
    return worker_id


def lowest_slot(t: Transition, host: str) -> int:
    """Returns the lowest slot of a host that no worker holds.

    A replacement gets the slot of the lost worker in this way.
    """
    held = {worker.slot for worker in t.workers.values() if worker.host == host}
    return next(n for n in range(len(held) + 1) if n not in held)


def count_replacements(t: Transition, count: int, host: str = "", failed: str = "") -> int:
    """Notes that `count` failed workers are replaced; returns how many restarts are used then.

    `host` is the host on which they failed, if it was a single one. `failed` is the id of the
    worker, if it was a single one.
    """
    new = (Replacement(t.now, t.training.progress, host, failed),) * count
    t.restarts = replace(t.restarts, replacements=(*t.restarts.replacements, *new))
    return t.restarts.used


def host_with_room(t: Transition, preferred: str = "", avoided: str = "") -> str:
    """Returns a host with a slot that no staying worker holds: `preferred` first, `avoided` last.

    If there is no such host, returns the first one in this order.
    """
    hosts = sorted(t.slots, key=lambda host: (host == avoided, host != preferred))
    staying = [w.host for w in t.staying]
    free = (host for host in hosts if t.slots[host] > staying.count(host))
    return next(free, hosts[0])


def change_slots(t: Transition, host: str, by: int) -> None:
    """Grants a host more slots, or takes some back if `by` is negative."""
    t.slots[host] = max(0, t.slots.get(host, 0) + by)


# --- granted -----------------------------------------------------------------------------


def add_workers(t: Transition, count: int) -> None:
    """Starts workers: first in slots whose worker was lost and not replaced, then in new slots."""
    missing = max(0, len(t.staying) + count - sum(t.slots.values()))
    _grant(t, next(iter(t.slots)), missing, count)


def grant(t: Transition, event: act.GrantSlots) -> None:
    """Starts a worker in each new slot."""
    _grant(t, event.host, event.count, event.count)


def _grant(t: Transition, host: str, num_slots: int, num_workers: int) -> None:
    change_slots(t, host, num_slots)
    started = [launch(t, 0.0, host) for _ in range(num_workers)]
    if num_slots:
        t.emit(events.SlotsGranted(host=host, slots=num_slots, workers=started))


# --- revoked -----------------------------------------------------------------------------


def revoke(t: Transition, event: act.RevokeSlots) -> None:
    """Takes slots back, and tells people of those that no round's line will name."""
    take_back(t, event.workers, REVOKED, event.empty, event.deadline_s)
    forming = t.rounds.forming
    told = {r.worker_id for r in forming.reasons} if forming else set()
    if isinstance(forming, Confirming):
        told |= set(forming.members)
    num_empty = sum(event.empty.values())
    what = [w for w in event.workers if w not in told]
    what += [f"{num_empty} empty"] if num_empty else []
    if what:
        t.say(f"{REVOKED}: {', '.join(what)} (not in the round)")


def take_back(
    t: Transition,
    worker_ids: Iterable[str],
    reason: str,
    empty: Mapping[str, int] | None = None,
    deadline_s: float | None = None,
) -> None:
    """Takes slots back: those of the workers, which have to leave, and `empty` ones by host."""
    leavers = [w for i in worker_ids if (w := t.workers.get(i)) and not w.leaving]
    empty = empty or {}
    for host in dict.fromkeys([*(w.host for w in leavers), *empty]):
        there = [w.worker_id for w in leavers if w.host == host]
        count = len(there) + empty.get(host, 0)
        change_slots(t, host, -count)
        t.emit(
            events.SlotsRevoked(
                host=host,
                slots=count,
                deadline_s=deadline_s,
                workers=there,
                reason=reason,
            )
        )
    for worker in leavers:
        _send_away(t, worker, reason, deadline_s)
    _form_without(t, [w.worker_id for w in leavers], reason)


def leave(t: Transition, event: protocol.Leaving) -> None:
    """Lets a worker leave that others have asked to leave, and takes its slot back.

    If each worker has a machine of its own, only the machine was taken: another worker is started
    in its place, in a new slot.
    """
    worker = t.workers.get(event.worker_id)
    take_back(t, [event.worker_id], event.reason)
    if worker is None or worker.leaving or worker.by_itself or not t.config.own_machines:
        return
    if not (t.stop or t.training.finishing):
        _grant(t, worker.host, 1, 1)


def _send_away(t: Transition, worker: Worker, reason: str, deadline_s: float | None) -> None:
    worker_id = worker.worker_id
    t.change_worker(worker_id, leaving=reason, leaving_since=t.now, leave_within_s=deadline_s)
    if worker.entry:
        t.dismiss(worker_id, reason)
    if worker.phase is WorkerPhase.STARTING:
        end_start(t, worker)


def end_start(t: Transition, worker: Worker) -> None:
    """Ends a worker that is still starting; one without a process is gone at once."""
    if worker.pid is None:
        del t.workers[worker.worker_id]
    else:
        t.actions.append(act.Kill(worker.worker_id))


def _form_without(t: Transition, leavers: Sequence[str], cause: str) -> None:
    """Takes members out of the round that forms, or opens one. The line of the round names them.

    If members already have their places in a round, this round runs first. `settle_rounds` opens
    the next one.
    """
    if isinstance(t.phase, Confirming):
        return
    reasons = [leaves(worker_id, cause) for worker_id in leavers if _leaves_round(t, worker_id)]
    if isinstance(t.phase, Entering) and not t.phase.reasons and not reasons:
        # The round has no reason left, but the members may have stopped their old round for it.
        reasons = [Reason(NEVER_JOINED)]
    if reasons:
        open_round(t, *reasons)


def _leaves_round(t: Transition, worker_id: str) -> bool:
    """Whether a round changes because this worker leaves. The worker is not awaited any more."""
    entering, running = t.phase, t.rounds.running
    if isinstance(entering, Entering) and worker_id in entering.called:
        uncall(t, entering, worker_id)
        return bool(entering.size_before) and joins(worker_id) not in entering.reasons
    if running is None or worker_id not in running.members:
        return False
    return t.workers[worker_id].phase is not WorkerPhase.DONE


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
