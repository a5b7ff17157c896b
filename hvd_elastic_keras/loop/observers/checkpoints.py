"""Has rank 0 write checkpoints while the training goes on."""

from __future__ import annotations

import time
from collections.abc import Callable

from hvd_elastic_keras.loop.kept_on_disk import Durable
from hvd_elastic_keras.loop.leave_reason import CheckpointGuard, LeaveReason
from hvd_elastic_keras.loop.observer import EndedEpoch, Observer, Round, TakenStep
from hvd_elastic_keras.loop.observers.nonfinite_loss import NonFiniteLoss
from hvd_elastic_keras.settings.options import RunOptions


class Checkpoints(Observer):
    """Has rank 0 write checkpoints while the training goes on, and its results at the end.

    Args:
      options: how often to write a checkpoint.
      losses: tells whether a loss is not finite. As long as one is not, no checkpoint is written,
        so that the earlier checkpoints are kept.
      guard: knows whether the job may have gone on without this worker.
      before: called before the state is copied; writes what must be on file before a checkpoint.
      clock: seconds of a steady clock.
    """

    def __init__(
        self,
        durable: Durable,
        options: RunOptions,
        losses: NonFiniteLoss,
        guard: CheckpointGuard,
        *,
        before: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._durable = durable
        self._options = options
        self._losses = losses
        self._guard = guard
        self._before = before
        self._clock = clock
        self._is_root = False
        self._round = 0
        self._is_due = False
        self._begun_at = clock()
        """When this worker's newest checkpoint began; before its first, when the training began."""

    def on_round(self, entered: Round) -> None:
        """Notes whether this worker writes."""
        self._is_root = entered.place.rank == 0
        self._round = entered.place.round

    def after_step(self, step: TakenStep) -> None:
        """Begins a checkpoint if it is time."""
        every, every_s = self._options.checkpoint_every_n_steps, self._every_s
        by_step = every and (step.cursor.global_step + 1) % every == 0
        by_time = every_s and self._clock() - self._begun_at >= every_s
        self._begin_if(bool(by_step or by_time))

    def after_epoch(self, epoch: EndedEpoch) -> None:
        """Begins a checkpoint if it is time."""
        every = self._options.checkpoint_every_n_epochs
        by_epoch = every and (epoch.is_last or (epoch.cursor.epoch + 1) % every == 0)
        self._begin_if(bool(by_epoch), steps_follow=not epoch.is_last)

    def on_order_to_leave(self, reason: LeaveReason) -> None:
        """Writes a checkpoint unless other workers may go on training."""
        if not self._is_root or self._losses.is_present:
            return
        if self._guard.lets_write(reason, self._round):
            self._before()
            self._durable.save_checkpoint()

    def on_end(self) -> None:
        """Writes the results."""
        if self._is_root:
            self._durable.save_results()

    def close(self) -> None:
        """Waits for the checkpoint that is being written."""
        self._durable.writer.wait()

    @property
    def _every_s(self) -> float:
        return self._options.checkpoint_every_minutes * 60

    def _begin_if(self, is_due: bool, *, steps_follow: bool = True) -> None:
        """Begins a checkpoint that is due, or became due while the last one was being written."""
        if not self._is_root or self._losses.is_present:
            return
        self._is_due |= is_due
        if self._is_due and not self._durable.writer.is_busy:
            self._is_due, self._begun_at = False, self._clock()
            self._before()
            self._durable.begin_checkpoint(copies=steps_follow)
