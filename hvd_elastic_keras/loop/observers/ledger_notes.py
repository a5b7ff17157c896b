"""Writes the steps and epochs of a training into its ledger."""

from __future__ import annotations

from hvd_elastic_keras.audit.finished import FinishedEpoch, finished_step
from hvd_elastic_keras.audit.recorder import Auditor
from hvd_elastic_keras.loop.observer import EndedEpoch, Observer, Round, TakenStep, TrainedEpoch


class LedgerNotes(Observer):
    """Notes every step with an `Auditor`, on all workers.

    This observer must be called before the one that writes checkpoints. Steps before a checkpoint
    are never taken again, so their notes have to be on file first.
    """

    def __init__(self, auditor: Auditor) -> None:
        self._auditor = auditor

    def on_round(self, entered: Round) -> None:
        """Puts missing notes on file, so that newcomers need no older notes."""
        cursor = entered.cursor
        self._auditor.enter_round(
            entered.place.rank,
            cursor.global_step,
            cursor.epoch,
            starts_state=entered.starts_state,
        )

    def on_commit(self, step: TakenStep) -> None:
        """Notes the step."""
        digest = step.result.digest
        self._auditor.note(finished_step(step.cursor, step.batch, step.place, step.shares, digest))

    def after_training_phase(self, epoch: TrainedEpoch) -> None:
        """Notes the end of the epoch's training steps."""
        cursor = epoch.cursor
        first = cursor.global_step - cursor.step
        self._auditor.note(FinishedEpoch(cursor.epoch, first, cursor.step, epoch.whole))

    def after_epoch(self, epoch: EndedEpoch) -> None:
        """Puts the epoch on file, so that a reader of the epoch's end finds its ledger."""
        self._auditor.flush(judged=False)

    def after_round(self) -> None:
        """Puts everything on file."""
        self._auditor.flush()

    def on_end(self) -> None:
        """Puts everything on file: no other worker could do it afterwards."""
        self._auditor.flush()

    def close(self) -> None:
        """Ends the thread that writes."""
        self._auditor.close()
