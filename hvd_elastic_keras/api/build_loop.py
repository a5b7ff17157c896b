"""Builds the training loop of one worker, with all its observers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence

from hvd_elastic_keras.api.fit_rounds import Prepared
from hvd_elastic_keras.api.training import Training
from hvd_elastic_keras.audit.recorder import Auditor, Ledgers
from hvd_elastic_keras.audit.verdict import Account
from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.events import EpochAudited, WorkerEntry
from hvd_elastic_keras.keras_internals.learning_rate import learning_rate_of
from hvd_elastic_keras.loop.course import Course
from hvd_elastic_keras.loop.kept_on_disk import Durable, KeptOnDisk, term_for
from hvd_elastic_keras.loop.leave_reason import CheckpointGuard
from hvd_elastic_keras.loop.loop_parts import LoopParts
from hvd_elastic_keras.loop.observer import Observer, Observers, Policy
from hvd_elastic_keras.loop.observers.agreement import SameReading, SameWeights
from hvd_elastic_keras.loop.observers.best_model import BestModel
from hvd_elastic_keras.loop.observers.checkpoints import Checkpoints
from hvd_elastic_keras.loop.observers.growing_batch import GrowingBatch
from hvd_elastic_keras.loop.observers.ledger_notes import LedgerNotes
from hvd_elastic_keras.loop.observers.nonfinite_loss import NonFiniteLoss
from hvd_elastic_keras.loop.observers.records import EpochRecords, StepRecords
from hvd_elastic_keras.loop.phase import PhaseRunner
from hvd_elastic_keras.loop.progress_display import ProgressDisplay
from hvd_elastic_keras.loop.shares import Shares
from hvd_elastic_keras.loop.start_notices import Announcer, StartNotices
from hvd_elastic_keras.loop.training_loop import TrainingLoop
from hvd_elastic_keras.observe.notices import Notice
from hvd_elastic_keras.state.cursor import Phase
from hvd_elastic_keras.step.world import world_of_process
from hvd_elastic_keras.worker.rounds import Rounds


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
    return _LoopBuilder(training, prepared, rounds).build(to_tell, watching)


def by_phase(runners: Sequence[PhaseRunner]) -> dict[Phase, PhaseRunner]:
    """Returns the runners by phase; the evaluation may be missing."""
    return dict(zip((Phase.TRAIN, Phase.EVALUATE), runners, strict=False))


class _LoopBuilder:
    """Holds what the parts of a loop have in common while they are made."""

    def __init__(self, training: Training, prepared: Prepared, rounds: Rounds) -> None:
        self._training = training
        self._prepared = prepared
        self._rounds = rounds
        self._session = rounds.session
        self._reporter = rounds.session.reporter
        self._options = training.options
        self._phases = by_phase(prepared.runners)
        self._world = world_of_process()
        self._display = ProgressDisplay(
            self._reporter.show, rounds.membership.screen, training.verbose
        )
        self._announcer = Announcer(self._reporter, self._display)

    def build(self, to_tell: Iterable[Notice], watching: Iterable[Observer]) -> TrainingLoop:
        training, state, train = self._training, self._prepared.state, self._phases[Phase.TRAIN]
        shares = Shares(state, training.train.num_micro_batches, self._announcer)
        kept = self._durable()
        observers = self._observers(to_tell, watching, kept)
        parts = LoopParts(
            model=training.model,
            rounds=self._rounds,
            state=state,
            train=train,
            evaluate=self._phases.get(Phase.EVALUATE),
            callbacks=training.callbacks,
            world=self._world,
            course=Course(training.schedule, state, train, self._world),
            shares=shares,
            observers=Observers(observers, self._policies(shares)),
        )
        return TrainingLoop(parts, kept)

    def _policies(self, shares: Shares) -> list[Policy]:
        growth = self._training.growth
        if not growth:
            return [shares]
        return [shares, GrowingBatch(growth, self._world, self._prepared.state, self._announcer)]

    def _observers(
        self, to_tell: Iterable[Notice], watching: Iterable[Observer], kept: Durable
    ) -> list[Observer]:
        """Returns the observers in their order.

        `Checkpoints` is the last one, so that everything before a checkpoint is on disk.
        """
        reporter, communicator, options = self._reporter, self._rounds.communicator, self._options
        auditor = self._auditor()
        losses = NonFiniteLoss(reporter, options.on_nonfinite)
        guard = CheckpointGuard(self._training.job_dir, self._rounds.membership.term)
        weights = self._prepared.state.variables.values
        return [
            *watching,
            self._announcer,
            self._display,
            losses,
            SameReading(self._phases, communicator),
            SameWeights(reporter, communicator, weights, options.check_weights_every_n_steps),
            self._prepared.reset_calls,
            *([LedgerNotes(auditor)] if auditor else []),
            StartNotices(reporter, to_tell, self._training.callbacks.unsendable_warning),
            self._step_records(),
            *self._best_model(),
            EpochRecords(reporter, audited=auditor is not None and auditor.records),
            Checkpoints(kept, options, losses, guard, before=_written_up(auditor)),
        ]

    def _step_records(self) -> StepRecords:
        world = self._world
        return StepRecords(
            self._reporter,
            self._session.training,
            waited_s=lambda: world.waited_s,
            seconds=world.step_seconds,
            learning_rate=functools.partial(learning_rate_of, self._training.model),
        )

    def _durable(self) -> Durable:
        training = self._training
        if training.job_dir is None:
            return Durable()
        return KeptOnDisk(
            training.job_dir,
            training.origin,
            model=training.model,
            callbacks=training.callbacks,
            state=self._prepared.state,
            session=self._session,
            options=self._options,
            term=term_for(self._rounds.membership.term, self._options),
        )

    def _best_model(self) -> list[Observer]:
        training = self._training
        if training.job_dir is None or not self._options.keep_best:
            return []

        return [
            BestModel(
                self._options.keep_best,
                files.training_dir(training.job_dir, self._session.training),
                model=training.model,
                schedule=training.schedule,
                callbacks=training.callbacks,
                state=self._prepared.state,
                tell=self._tell,
                warn=self._reporter.show,
            )
        ]

    def _auditor(self) -> Auditor | None:
        if self._training.job_dir is None:
            return None
        directory = files.training_dir(self._training.job_dir, self._session.training)
        directory /= files.LEDGER
        if not self._options.audit and not directory.exists():
            return None

        def tell(epoch: int, account: Account) -> None:
            entry = EpochAudited(epoch=epoch, exact=account.is_exact, verdict=account.verdict)
            self._tell(f"audit of epoch {epoch + 1}: {account.summary}", entry)

        train, warn = self._phases[Phase.TRAIN], self._display.warning
        ledgers = Ledgers(directory, train, tell, warn=warn)
        return Auditor(ledgers, records=self._options.audit)

    def _tell(self, text: str, entry: WorkerEntry) -> None:
        """Adds an entry, and shows a line unless the training is quiet."""
        text = text if self._training.verbose else ""
        self._reporter.tell(text, entry, prefix=self._display.line_break)


def _written_up(auditor: Auditor | None) -> Callable[[], None]:
    """Returns a function that writes the ledger before a checkpoint.

    Steps before a checkpoint are never repeated, so their entries must be on disk first.
    """
    return functools.partial(auditor.flush, judged=False) if auditor else lambda: None
