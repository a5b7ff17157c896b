"""The state machine that decides which workers train. Pure.

`decide(config, state, event, now)` returns a new state and actions. It touches no clock, socket or
process. The rules are in these modules:

| module         | concern                                                               |
|----------------|-----------------------------------------------------------------------|
| `arrivals`     | workers start, become warm, ask for a place, confirm and report       |
| `gathering`    | which workers a round calls, when it has its members, and their ranks |
| `rounds`       | a round is opened, breaks, runs                                       |
| `slots`        | how many workers are kept up, which have to leave, and who may join   |
| `trainings`    | a job may train several times; how it goes on, and how it ends        |
| `lost_workers` | a worker or host is gone: for its round, and what replaces it         |
| `time_limits`  | workers that are silent, late or do not go on                         |
"""

from __future__ import annotations

from msgspec.structs import replace

from hvd_elastic_keras.common import events, protocol
from hvd_elastic_keras.launchers.base import WorkerExit
from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine import arrivals, lost_workers, slots, trainings
from hvd_elastic_keras.master.machine.gathering import settle_rounds
from hvd_elastic_keras.master.machine.phases import Stopping
from hvd_elastic_keras.master.machine.state import State, WorkerPhase
from hvd_elastic_keras.master.machine.time_limits import hold_time_limits
from hvd_elastic_keras.master.machine.trainings import end_if_over
from hvd_elastic_keras.master.machine.transition import Transition
from hvd_elastic_keras.settings.job_config import JobConfig


def decide(
    config: JobConfig, state: State, event: act.Event, now: float
) -> tuple[State, list[act.Action]]:
    """Applies one event at time `now` (seconds of any steady clock).

    Raises:
      TypeError: the machine does not know this event.
    """
    if not isinstance(event, act.Event):
        raise TypeError(f"{event!r} was given, expected an event of membership.")
    t = Transition(config, state, now)
    if state.ended:
        _apply_after_end(t, event)
    else:
        _apply(t, event)
        if not isinstance(
            event, protocol.Heartbeat | protocol.Alive
        ):  # these only report on a worker
            _settle(t)
    return t.result()


def _apply(t: Transition, event: act.Event) -> None:  # noqa: PLR0912  a case for each event
    match event:
        case act.Started():
            arrivals.note_start(t, event)
        case act.Pending():
            arrivals.note_pending(t, event)
        case act.Registered():
            slots.register(t, event)
        case act.HostFailed():
            lost_workers.note_failed_host(t, event)
        case protocol.Joined():
            arrivals.join(t, event)
        case protocol.EnterRequest():
            arrivals.enter(t, event)
        case protocol.Running():
            arrivals.note_running(t, event)
        case protocol.Heartbeat():
            arrivals.note_heartbeat(t, event)
        case protocol.Alive():
            arrivals.note_life(t, event)
        case protocol.Done():
            trainings.finish_training(t, event)
        case protocol.Refused():
            arrivals.note_refusal(t, event)
        case protocol.Leaving():
            slots.leave(t, event)
        case act.RemoveWorker():
            slots.take_back(t, [event.worker_id], "removed on request")
        case act.RevokeSlots():
            slots.revoke(t, event)
        case act.GrantSlots():
            slots.grant(t, event)
        case act.AddWorkers():
            slots.add_workers(t, event.count)
        case WorkerExit() | act.LaunchFailed() | act.LaunchCancelled():
            lost_workers.depart(t, event)
        case act.Tick():
            hold_time_limits(t)
        case act.StopJob():
            _stop(t, event.reason)
        case _:
            raise TypeError(f"{type(event).__name__} is an event that `decide` does not handle.")


def _apply_after_end(t: Transition, event: act.Event) -> None:
    """Handles an event after the end: nothing is decided, but workers still call and leave."""
    match event:
        case protocol.EnterRequest():
            t.dismiss(event.worker_id, t.stop)
        case WorkerExit() | act.LaunchFailed() | act.LaunchCancelled():
            lost_workers.depart(t, event)
        case _:
            pass  # too late


def _stop(t: Transition, reason: str) -> None:
    """Lets all workers leave after the current step."""
    t.job = Stopping(reason)
    t.emit(events.JobStopping(reason=reason))
    if running := t.rounds.running:
        t.rounds = replace(t.rounds, pending_through=running.number)
    for worker in list(t.workers.values()):
        if worker.entry:
            t.dismiss(worker.worker_id, reason)
        elif worker.phase is WorkerPhase.STARTING:
            slots.end_start(t, worker)


def _settle(t: Transition) -> None:
    """Applies the rules that hold at any time: forms rounds, and ends trainings and the job."""
    if t.ended:
        return
    trainings.settle_training(t)
    if not t.stop:
        settle_rounds(t)
    end_if_over(t)
