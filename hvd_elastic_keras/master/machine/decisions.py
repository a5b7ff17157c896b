"""The part of the master's state that outlives it; how another master goes on from it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from hvd_elastic_keras.common.goodput import Part, Spent
from hvd_elastic_keras.common.messages import Message
from hvd_elastic_keras.master.machine.actions import Action
from hvd_elastic_keras.master.machine.claims import Claims, Holder, Position
from hvd_elastic_keras.master.machine.phases import (
    Confirming,
    Entering,
    RoundPhase,
    Running,
    Stall,
    Waiting,
)
from hvd_elastic_keras.master.machine.reasons import Reason
from hvd_elastic_keras.master.machine.rounds import break_round
from hvd_elastic_keras.master.machine.state import (
    Replacement,
    Restarts,
    State,
    Training,
    Worker,
    WorkerPhase,
)
from hvd_elastic_keras.master.machine.transition import Transition
from hvd_elastic_keras.master.machine.value import decided
from hvd_elastic_keras.settings.job_config import JobConfig

RESTARTED = Reason("the launcher was restarted")
DAMAGED = Reason("the launcher was restarted with a damaged journal")
VERSIONS_PER_DECISION = 1000
"""More versions than workers may have been told of between two entries of the journal."""


class Answer(Message, frozen=True, kw_only=True):
    """The answer to an accepted request; see `control.SlotsReply`."""

    text: str
    workers: tuple[str, ...] = ()
    asked: str = ""
    """The request, as it was sent."""


class Decisions(Message, frozen=True, kw_only=True):
    """All decisions of a master that workers or people may rely on."""

    state: State
    """The decided part of the state; see `machine.value`."""
    holders: dict[str, Holder]
    """The worker that does each task that only one may do; see `machine.claims`."""
    done: dict[str, Position]
    results: dict[str, str] = msgspec.field(default_factory=dict)
    answers: dict[str, Answer] = msgspec.field(default_factory=dict)
    """Answers by `control.ChangeRequest.command_id`."""
    newest_step: int
    """The newest step when this was written: workers may be further."""
    spent: dict[Part, float] = msgspec.field(default_factory=dict)
    """Seconds that the job had taken when this was written; see `goodput.Spent`."""
    written_at: float | None = None
    """When this was written, in seconds since 1970."""

    @property
    def claims(self) -> Claims:
        """The tasks that only one worker does, as another master goes on with them."""
        return Claims(holders=self.holders, done=self.done, results=self.results)

    def equal(self, other: Decisions) -> bool:
        """Whether the decisions are the same. Steps and times do not count: they are observed."""
        return replace(self, newest_step=0, spent={}, written_at=None) == replace(
            other, newest_step=0, spent={}, written_at=None
        )

    def away_s(self, at: float) -> float:
        """Returns the seconds without a master until `at`, a time in seconds since 1970."""
        return 0.0 if self.written_at is None else max(0.0, at - self.written_at)


def decisions_of(
    state: State,
    claims: Claims,
    answers: Mapping[str, Answer],
    written_at: float | None = None,
) -> Decisions:
    """Returns the decisions to be kept, from a state, from claims and from answers.

    Args:
      written_at: the present time, in seconds since 1970.
    """
    return Decisions(
        state=decided(state),
        holders=dict(claims.holders),
        done=dict(claims.done),
        results=dict(claims.results),
        answers=dict(answers),
        newest_step=state.training.newest_step,
        spent=dict(state.spent.seconds),
        written_at=written_at,
    )


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
    config: JobConfig,
    kept: Decisions,
    now: float,
    *,
    away_s: float = 0.0,
    most_lost: int = 0,
    unused_number: int = 0,
) -> tuple[State, list[Action]]:
    """Returns the state from which another master goes on, and the actions that it takes first.

    Args:
      away_s: seconds without a master. The workers are taken to have trained on, until one of them
        tells since when it has not.
      most_lost: how many later decisions, at most, are not known. Workers may be in a later round
        than the last one in `kept`: all rounds are broken, and the next one is formed.
      unused_number: a number from which on no worker was ever started, as far as is known.

    All time limits begin anew: the time without a master counts against no worker. If members had
    been given their places and not all were known to run, the round is formed again: the rendezvous
    store through which they meet is gone.
    """
    before, away_since = kept.state, now - away_s
    training = replace(before.training, newest_step=kept.newest_step)
    state = replace(
        before,
        version=before.version + most_lost * VERSIONS_PER_DECISION,
        next_worker_number=max(before.next_worker_number, unused_number),
        workers={i: _worker(w, training, now) for i, w in before.workers.items()},
        training=training,
        rounds=replace(before.rounds, phase=_phase(before.rounds.phase, now, away_since)),
        restarts=Restarts((Replacement(now, training.progress),) * before.restarts.used),
        spent=Spent(kept.spent, away_since),
    )
    t = Transition(config, state, now)
    if most_lost:
        _break_all_rounds(t, t.rounds.last_number + most_lost, away_since)
    elif isinstance(state.rounds.phase, Confirming):
        break_round(t, RESTARTED)
    return t.result()


def _break_all_rounds(t: Transition, through: int, away_since: float) -> None:
    """Breaks all rounds up to `through`. Their members come to the entrance.

    The workers that are known to be members are awaited there.
    """
    members = tuple(w.worker_id for w in t.workers.values() if w.phase is WorkerPhase.MEMBER)
    assigned = Confirming(number=through, size_before=len(members), members=members)
    phase = _phase(assigned, t.now, away_since) if members else Waiting()
    t.rounds = replace(
        t.rounds,
        phase=phase,
        last_number=through,
        pending_through=through,
        broken_through=through,
    )
    break_round(t, DAMAGED)


def _worker(worker: Worker, training: Training, now: float) -> Worker:
    is_member = worker.phase is WorkerPhase.MEMBER and worker.training == training.number
    ready_at = None if worker.phase is WorkerPhase.STARTING else now
    return replace(
        worker,
        launched_at=now,
        last_heartbeat=ready_at,
        ready_at=ready_at,
        leaving_since=now if worker.leaving else None,
        step=training.newest_step if is_member else 0,
    )


def _phase(phase: RoundPhase, now: float, away_since: float) -> RoundPhase:
    """Returns a phase of the master before, whose times begin anew."""
    stall = Stall(now, ran_since=away_since)
    match phase:
        case Running():
            return replace(phase, since=away_since)
        case Entering(still_running=None):
            return replace(phase, opened_at=now, stall=stall)
        case Entering(still_running=Running() as running):
            return replace(phase, opened_at=now, still_running=replace(running, since=away_since))
        case Confirming():
            return replace(phase, stall=stall, assigned_at=now)
    return phase
