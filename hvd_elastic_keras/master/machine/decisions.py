"""The part of the master's state that outlives it; how another master goes on from it. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import msgspec

from hvd_elastic_keras.common.config import JobConfig
from hvd_elastic_keras.common.goodput import Part, Spent
from hvd_elastic_keras.common.messages import Message
from hvd_elastic_keras.master.machine.actions import Action
from hvd_elastic_keras.master.machine.claims import Holder, Position
from hvd_elastic_keras.master.machine.phases import (
    Active,
    Confirming,
    Ended,
    Entering,
    JobPhase,
    RoundPhase,
    Running,
    Stall,
    Stopping,
    Waiting,
)
from hvd_elastic_keras.master.machine.reasons import Reason
from hvd_elastic_keras.master.machine.rounds import break_round
from hvd_elastic_keras.master.machine.state import (
    Finish,
    Replacement,
    Restarts,
    Rounds,
    State,
    Training,
    Worker,
    WorkerPhase,
)
from hvd_elastic_keras.master.machine.transition import Transition

RESTARTED = Reason("the launcher was restarted")
DAMAGED = Reason("the launcher was restarted with a damaged journal")
VERSIONS_PER_DECISION = 1000
"""More versions than workers may have been told of between two entries of the journal."""


class KeptWorker(Message, frozen=True, kw_only=True):
    """A worker, without the values that were only observed."""

    phase: WorkerPhase
    host: str
    slot: int = 0
    pid: int | None
    seniority: int | None
    training: int
    told_spare: bool
    by_itself: bool = False
    leaving: str
    leave_within_s: float | None


class KeptTraining(Message, frozen=True, kw_only=True):
    """The newest training."""

    number: int
    rounds_before: int
    num_micro_batches: int | None
    batch_grows: bool
    newest_step: int
    """The newest step when this was written: workers may be further."""
    finishing: bool
    script_ended: bool


class KeptRounds(Message, frozen=True, kw_only=True):
    """The newest round. At most one of `running`, `entering` and `assigned` is given."""

    running: Running | None = None
    entering: Entering | None = None
    assigned: tuple[str, ...] = ()
    """The members, if not all of them were known to run."""
    size_before: int = 0
    last_number: int
    last_members: tuple[str, ...]
    next_seniority: int
    pending_through: int
    broken_through: int


class Answer(Message, frozen=True, kw_only=True):
    """The answer to an accepted request; see `control.SlotsReply`."""

    text: str
    workers: tuple[str, ...] = ()


class Decisions(Message, frozen=True, kw_only=True):
    """All decisions of a master that workers or people may rely on."""

    version: int
    stop: str = ""
    ended: bool = False
    workers: dict[str, KeptWorker]
    next_worker_number: int
    slots: dict[str, int]
    training: KeptTraining
    rounds: KeptRounds
    restarts_used: int
    holders: dict[str, Holder]
    """The worker that does each task that only one may do; see `machine.claims`."""
    done: dict[str, Position]
    answers: dict[str, Answer] = msgspec.field(default_factory=dict)
    """Answers by `control.ChangeRequest.command_id`."""
    spent: dict[Part, float] = msgspec.field(default_factory=dict)
    """Seconds that the job had taken when this was written; see `goodput.Spent`."""
    written_at: float | None = None
    """When this was written, in seconds since 1970."""

    def equal(self, other: Decisions) -> bool:
        """Whether the decisions are the same. Steps and times do not count: they are observed."""
        return _only_decided(self) == _only_decided(other)

    def away_s(self, at: float) -> float:
        """Returns the seconds without a master until `at`, a time in seconds since 1970."""
        return 0.0 if self.written_at is None else max(0.0, at - self.written_at)


def is_only_observed(before: State, after: State) -> bool:
    """Whether nothing was decided between two states: their `decisions_of` are equal.

    Most events are heartbeats, after which all workers but one are the same.
    """
    return (
        before.version == after.version
        and before.job == after.job
        and before.next_worker_number == after.next_worker_number
        and before.slots == after.slots
        and before.restarts.used == after.restarts.used
        and _are_kept_alike(before.workers, after.workers)
        and _kept_rounds(before.rounds) == _kept_rounds(after.rounds)
        and _kept_training(before.training, steps=False)
        == _kept_training(after.training, steps=False)
    )


def _are_kept_alike(before: Mapping[str, Worker], after: Mapping[str, Worker]) -> bool:
    old = before.get
    changed = [(old(i), w) for i, w in after.items() if old(i) is not w]
    return len(before) == len(after) and all(b and _kept(b) == _kept(w) for b, w in changed)


def _only_decided(decisions: Decisions) -> Decisions:
    training = msgspec.structs.replace(decisions.training, newest_step=0)
    return msgspec.structs.replace(decisions, training=training, spent={}, written_at=None)


# --- to be kept --------------------------------------------------------------------------


def decisions_of(
    state: State,
    holders: Mapping[str, Holder],
    done: Mapping[str, Position],
    answers: Mapping[str, Answer],
    written_at: float | None = None,
) -> Decisions:
    """Returns the decisions to be kept, from a state, from claims and from answers.

    Args:
      holders: the workers that do a task that only one may do.
      done: the tasks that have been done.
      written_at: the present time, in seconds since 1970.
    """
    return Decisions(
        version=state.version,
        stop=state.stop,
        ended=state.ended,
        workers={w.worker_id: _kept(w) for w in state.workers.values()},
        next_worker_number=state.next_worker_number,
        slots=dict(state.slots),
        training=_kept_training(state.training, steps=True),
        rounds=_kept_rounds(state.rounds),
        restarts_used=state.restarts.used,
        holders=dict(holders),
        done=dict(done),
        answers=dict(answers),
        spent=dict(state.spent.seconds),
        written_at=written_at,
    )


def _kept(worker: Worker) -> KeptWorker:
    return KeptWorker(**{name: getattr(worker, name) for name in KeptWorker.__struct_fields__})


def _kept_training(training: Training, *, steps: bool) -> KeptTraining:
    return KeptTraining(
        number=training.number,
        rounds_before=training.rounds_before,
        num_micro_batches=training.num_micro_batches,
        batch_grows=training.batch_grows,
        newest_step=training.newest_step if steps else 0,
        finishing=training.finishing,
        script_ended=bool(training.finish and training.finish.script_ended),
    )


def _kept_rounds(rounds: Rounds) -> KeptRounds:
    phase = rounds.phase
    assigned = phase if isinstance(phase, Confirming) else None
    return KeptRounds(
        running=_begun(phase, 0.0) if isinstance(phase, Running) else None,
        entering=_without_times(phase) if isinstance(phase, Entering) else None,
        assigned=assigned.members if assigned else (),
        size_before=assigned.size_before if assigned else 0,
        last_number=rounds.last_number,
        last_members=rounds.last_members,
        next_seniority=rounds.next_seniority,
        pending_through=rounds.pending_through,
        broken_through=rounds.broken_through,
    )


def _without_times(entering: Entering) -> Entering:
    """Returns the phase without its times: their clock ends with the master."""
    before = entering.still_running
    still_running = before and _begun(before, 0.0)
    return dataclasses.replace(
        entering, opened_at=0.0, first_entry_at=None, still_running=still_running, stall=None
    )


def _opened_again(entering: Entering, now: float, away_since: float) -> Entering:
    """Returns the phase as if the round had been opened now."""
    before = entering.still_running
    return dataclasses.replace(
        entering,
        opened_at=now,
        still_running=before and _begun(before, away_since),
        stall=None if before else Stall(now, ran_since=away_since),
    )


def _begun(running: Running, at: float) -> Running:
    return dataclasses.replace(running, since=at)


# --- to go on from -----------------------------------------------------------------------


def spent_before(left: Decisions | None, at: float) -> Spent:
    """Returns the time spent by earlier runs of this job; nothing if there were none.

    Args:
      left: the last decisions of the earlier runs.
      at: the present time, in seconds since 1970. The time since `left` was written counts as
        `Part.DOWN`, because it is not known when the last worker ended.
    """
    if left is None:
        return Spent()
    return Spent(left.spent, 0.0).up_to(left.away_s(at), Part.DOWN).stopped()


def restored(
    config: JobConfig, kept: Decisions, now: float, away_s: float = 0.0, most_lost: int = 0
) -> tuple[State, list[Action]]:
    """Returns the state from which another master goes on, and the actions that it takes first.

    Args:
      away_s: seconds without a master. The workers are taken to have trained on, until one of them
        tells since when it has not.
      most_lost: how many later decisions, at most, are not known. Workers may be in a later round
        than the last one in `kept`: all rounds are broken, and the next one is formed.

    All time limits begin anew: the time without a master counts against no worker. If members had
    been given their places and not all were known to run, the round is formed again: the rendezvous
    store through which they meet is gone.
    """
    workers = {i: _worker(i, w, kept.training, now) for i, w in kept.workers.items()}
    training = kept.training
    state = State(
        version=kept.version + most_lost * VERSIONS_PER_DECISION,
        job=_job(kept),
        workers=workers,
        next_worker_number=kept.next_worker_number,
        slots=kept.slots,
        training=Training(
            number=training.number,
            rounds_before=training.rounds_before,
            num_micro_batches=training.num_micro_batches,
            batch_grows=training.batch_grows,
            newest_step=training.newest_step,
            finish=Finish(script_ended=training.script_ended) if training.finishing else None,
        ),
        rounds=Rounds(
            phase=_phase(kept.rounds, now, now - away_s),
            last_number=kept.rounds.last_number,
            last_members=kept.rounds.last_members,
            next_seniority=kept.rounds.next_seniority,
            pending_through=kept.rounds.pending_through,
            broken_through=kept.rounds.broken_through,
        ),
        restarts=Restarts(_replacements(kept, now)),
        spent=Spent(kept.spent, now - away_s),
    )
    t = Transition(config, state, now)
    if most_lost:
        _break_all_rounds(t, t.rounds.last_number + most_lost, now - away_s)
    elif isinstance(state.rounds.phase, Confirming):
        break_round(t, RESTARTED)
    return t.result()


def _break_all_rounds(t: Transition, through: int, away_since: float) -> None:
    """Breaks all rounds up to `through`. Their members come to the entrance.

    The workers that are known to be members are awaited there.
    """
    members = tuple(w.worker_id for w in t.workers.values() if w.phase is WorkerPhase.MEMBER)
    phase = _assigned(through, members, len(members), t.now, away_since) if members else Waiting()
    t.rounds = dataclasses.replace(
        t.rounds,
        phase=phase,
        last_number=through,
        pending_through=through,
        broken_through=through,
    )
    break_round(t, DAMAGED)


def _assigned(
    number: int, members: tuple[str, ...], size_before: int, now: float, away_since: float
) -> Confirming:
    """Returns a round whose members were given their places by a master that is gone."""
    return Confirming(
        number=number,
        reasons=(),
        size_before=size_before,
        stall=Stall(now, ran_since=away_since),
        members=members,
        places={},
        assigned_at=now,
    )


def _replacements(kept: Decisions, now: float) -> tuple[Replacement, ...]:
    progress = kept.training.number, kept.training.newest_step
    return (Replacement(now, progress),) * kept.restarts_used


def _worker(worker_id: str, kept: KeptWorker, training: KeptTraining, now: float) -> Worker:
    is_member = kept.phase is WorkerPhase.MEMBER and kept.training == training.number
    return Worker(
        worker_id,
        launched_at=now,
        **{name: getattr(kept, name) for name in KeptWorker.__struct_fields__},
        last_heartbeat=None if kept.phase is WorkerPhase.STARTING else now,
        ready_at=None if kept.phase is WorkerPhase.STARTING else now,
        leaving_since=now if kept.leaving else None,
        step=training.newest_step if is_member else 0,
    )


def _job(kept: Decisions) -> JobPhase:
    if kept.ended:
        return Ended(kept.stop)
    return Stopping(kept.stop) if kept.stop else Active()


def _phase(kept: KeptRounds, now: float, away_since: float) -> RoundPhase:
    if kept.running:
        return _begun(kept.running, away_since)
    if kept.entering:
        return _opened_again(kept.entering, now, away_since)
    if kept.assigned:
        return _assigned(kept.last_number, kept.assigned, kept.size_before, now, away_since)
    return Waiting()
