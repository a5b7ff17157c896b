"""Brings what a training does into its ledger."""

from __future__ import annotations

from hvd_elastic_keras.audit.finished import FinishedEpoch, finished_step
from hvd_elastic_keras.audit.recorder import Auditor
from hvd_elastic_keras.loop.observer import EndedEpoch, Observer, Round, TakenStep, TrainedEpoch


class LedgerNotes(Observer):
    """Notes every step with an `Auditor`, on all workers.

    It has to hear of everything before those who write checkpoints: what comes before a checkpoint
    is never trained again, so that it has to be on file first.
    """

    def __init__(self, auditor: Auditor) -> None:
        self._auditor = auditor

    def on_round(self, entered: Round) -> None:
        """Puts what is missing on file: newcomers need no older notes."""
        cursor = entered.cursor
        self._auditor.enter_round(
            entered.place.rank, cursor.global_step, cursor.epoch, takes_up=entered.takes_up
        )

    def on_commit(self, step: TakenStep) -> None:
        """Notes it."""
        digest = step.result.digest
        self._auditor.note(finished_step(step.cursor, step.batch, step.place, step.shares, digest))

    def after_training_phase(self, epoch: TrainedEpoch) -> None:
        """Notes it."""
        cursor = epoch.cursor
        first = cursor.global_step - cursor.step
        self._auditor.note(FinishedEpoch(cursor.epoch, first, cursor.step, epoch.whole))

    def after_epoch(self, epoch: EndedEpoch) -> None:
        """Who reads of the end of an epoch finds its ledger."""
        self._auditor.flush(judged=False)

    def after_round(self) -> None:
        """Puts everything on file."""
        self._auditor.flush()

    def on_end(self) -> None:
        """Puts everything on file: afterwards nobody could do it for this worker."""
        self._auditor.flush()

    def close(self) -> None:
        """Ends the thread that writes."""
        self._auditor.close()
