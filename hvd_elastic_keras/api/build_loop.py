"""Builds the training loop of one worker, with all its observers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence

from hvd_elastic_keras.api.fit_rounds import Prepared
from hvd_elastic_keras.api.training import Training
from hvd_elastic_keras.audit.recorder import Auditor, Ledgers
from hvd_elastic_keras.audit.verdict import Account
from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.events import BestModelSaved, EpochAudited
from hvd_elastic_keras.keras_internals.learning_rate import learning_rate_of
from hvd_elastic_keras.loop.course import Course
from hvd_elastic_keras.loop.kept_on_disk import Checkpoints, Durable, KeptOnDisk, term_for
from hvd_elastic_keras.loop.leave_reason import CheckpointGuard
from hvd_elastic_keras.loop.loop_parts import LoopParts
from hvd_elastic_keras.loop.nonfinite_loss import NonFiniteLoss
from hvd_elastic_keras.loop.observer import Observer, Observers, Policy
from hvd_elastic_keras.loop.observers.agreement import SameReading, SameWeights
from hvd_elastic_keras.loop.observers.best_model import BestModel
from hvd_elastic_keras.loop.observers.growing_batch import GrowingBatch
from hvd_elastic_keras.loop.observers.ledger_notes import LedgerNotes
from hvd_elastic_keras.loop.observers.records import EpochRecords, StepRecords
from hvd_elastic_keras.loop.phase import PhaseRunner
from hvd_elastic_keras.loop.progress_display import ProgressDisplay
from hvd_elastic_keras.loop.shares import Shares
from hvd_elastic_keras.loop.start_notices import Announcer, StartNotices
from hvd_elastic_keras.loop.training_loop import TrainingLoop
from hvd_elastic_keras.observe.notices import Notice
from hvd_elastic_keras.state.cursor import Phase
from hvd_elastic_keras.state.run_state import RunState
from hvd_elastic_keras.step.world import world_of_process
from hvd_elastic_keras.worker.rounds import Rounds
from hvd_elastic_keras.worker.session import Session


def build_loop(
    training: Training,
    prepared: Prepared,
    rounds: Rounds,
    to_tell: Iterable[Notice],
    watching: Iterable[Observer] = (),
) -> TrainingLoop:
    """Returns the loop of a training that this worker has joined.

    Args:
      to_tell: notices for people when the training begins.
      watching: further observers.
    """
    session, communicator = rounds.session, rounds.communicator
    membership = rounds.membership
    reporter = session.reporter
    state = prepared.state
    display = ProgressDisplay(reporter.show, membership.screen, training.verbose)
    phases, world = by_phase(prepared.runners), world_of_process()
    announcer = Announcer(reporter, display)
    shares = Shares(state, training.train.num_micro_batches, announcer)
    kept = _durable(training, state, rounds)
    auditor = _auditor(training, phases[Phase.TRAIN], session, display)
    growth = training.growth
    options = training.options
    losses = NonFiniteLoss(reporter, options.on_nonfinite)
    guard = CheckpointGuard(training.job_dir, membership.term)
    policies: list[Policy] = [shares]
    if growth:
        policies.append(GrowingBatch(growth, world, state, announcer))
    # `Checkpoints` is the last one, so that everything before a checkpoint is on disk.
    observers = [
        *watching,
        announcer,
        display,
        losses,
        SameReading(phases, communicator),
        SameWeights(
            reporter, communicator, state.variables.values, options.check_weights_every_n_steps
        ),
        prepared.reset_calls,
        *([LedgerNotes(auditor)] if auditor else []),
        StartNotices(reporter, to_tell, training.callbacks.unsendable_warning),
        StepRecords(
            reporter,
            session.training,
            waited_s=lambda: world.waited_s,
            seconds=world.step_seconds,
            learning_rate=functools.partial(learning_rate_of, training.model),
        ),
        *_best_model(training, prepared, session, display),
        EpochRecords(reporter, audited=auditor is not None and auditor.records),
        Checkpoints(kept, options, losses, guard, before=_written_up(auditor)),
    ]
    parts = LoopParts(
        model=training.model,
        rounds=rounds,
        state=state,
        train=phases[Phase.TRAIN],
        evaluate=phases.get(Phase.EVALUATE),
        callbacks=training.callbacks,
        world=world,
        course=Course(training.schedule, state, phases[Phase.TRAIN], world),
        shares=shares,
        observers=Observers(observers, policies),
    )
    return TrainingLoop(parts, kept)


def by_phase(runners: Sequence[PhaseRunner]) -> dict[Phase, PhaseRunner]:
    """Returns the runners by phase; the evaluation may be missing."""
    return dict(zip((Phase.TRAIN, Phase.EVALUATE), runners, strict=False))


def _durable(training: Training, state: RunState, rounds: Rounds) -> Durable:
    if training.job_dir is None:
        return Durable()
    return KeptOnDisk(
        training.job_dir,
        training.origin,
        model=training.model,
        callbacks=training.callbacks,
        state=state,
        session=rounds.session,
        options=training.options,
        term=term_for(rounds.membership.term, training.options),
    )


def _best_model(
    training: Training, prepared: Prepared, session: Session, display: ProgressDisplay
) -> list[Observer]:
    if training.job_dir is None or not training.options.keep_best:
        return []

    def tell(text: str, entry: BestModelSaved) -> None:
        session.reporter.tell(text if training.verbose else "", entry, prefix=display.line_break)

    return [
        BestModel(
            training.options.keep_best,
            files.training_dir(training.job_dir, session.training),
            model=training.model,
            schedule=training.schedule,
            callbacks=training.callbacks,
            state=prepared.state,
            tell=tell,
            warn=session.reporter.show,
        )
    ]


def _written_up(auditor: Auditor | None) -> Callable[[], None]:
    """Returns a function that writes the ledger before a checkpoint.

    Steps before a checkpoint are never repeated, so their entries must be on disk first.
    """
    return functools.partial(auditor.flush, judged=False) if auditor else lambda: None


def _auditor(
    training: Training, runner: PhaseRunner, session: Session, display: ProgressDisplay
) -> Auditor | None:
    if training.job_dir is None:
        return None
    directory = files.training_dir(training.job_dir, session.training) / files.LEDGER
    if not training.options.audit and not directory.exists():
        return None

    def tell(epoch: int, account: Account) -> None:
        text = f"audit of epoch {epoch + 1}: {account.summary}" if training.verbose else ""
        entry = EpochAudited(epoch=epoch, exact=account.is_exact, verdict=account.verdict)
        session.reporter.tell(text, entry, prefix=display.line_break)

    ledgers = Ledgers(directory, runner, tell, warn=display.warning)
    return Auditor(ledgers, records=training.options.audit)
