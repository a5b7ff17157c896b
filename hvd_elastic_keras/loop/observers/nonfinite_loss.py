"""Reports a loss that is NaN or infinite, and keeps the checkpoints from before it.

With the policy `skip`, the step finds it before it assigns anything (`step/partitioned_step.py`).
"""

from __future__ import annotations

from hvd_elastic_keras.common.errors import NonFiniteLossError, nonfinite_losses
from hvd_elastic_keras.loop.observer import Observer, TakenStep
from hvd_elastic_keras.settings.options import IGNORE, SKIP, STOP
from hvd_elastic_keras.worker.reporter import Reporter

MOST_SKIPPED = 100
"""Give up after this many steps in a row that are not finite: the examples are not the cause."""


class NonFiniteLoss(Observer):
    """Looks at the losses in the logs of each step, which are the same on all workers.

    Keras's losses are means over the epoch so far: after one NaN they stay NaN.

    Args:
      policy: "ignore", as plain Keras does; "warn"; "skip"; or "stop".

    Attributes:
      is_present: whether a loss of the newest step was not finite.
    """

    def __init__(self, reporter: Reporter, policy: str) -> None:
        self._reporter = reporter
        self._policy = policy
        self._told = False
        self._skipped = 0
        """Steps in a row that were skipped."""
        self.is_present = False

    def after_step(self, step: TakenStep) -> None:
        """Reports the first loss that is not finite, and every skipped step.

        Raises:
          NonFiniteLossError: the policy is `stop`, or `MOST_SKIPPED` steps in a row were skipped.
        """
        if self._policy == IGNORE:
            return
        if self._policy == SKIP:
            self._note_skipped(step)
        found = nonfinite_losses(step.result.logs)
        self.is_present = bool(found)
        if not found or self._told:
            return
        self._told = True
        number, epoch = step.cursor.global_step, step.cursor.epoch + 1
        what = f"{' and '.join(found)} in step {number} (from 0; epoch {epoch})"
        if self._policy == STOP:
            raise NonFiniteLossError(
                f"Not finite: {what}. The job stops there (--on_nonfinite=stop); a lower learning "
                "rate, clipping of gradients or a look at the data of that step may help."
            )
        self._reporter.tell(
            f"warning: not finite: {what}. The checkpoints from before are kept, and none is "
            "written meanwhile; --on_nonfinite=stop ends such a job at once"
        )

    def _note_skipped(self, step: TakenStep) -> None:
        self._skipped = self._skipped + 1 if step.result.skipped else 0
        if not step.result.skipped:
            return
        cursor, size = step.cursor, step.num_examples
        where = (
            f"step {cursor.global_step} (from 0; step {cursor.step} of epoch {cursor.epoch + 1})"
        )
        self._reporter.tell(
            f"warning: {where} was skipped on all workers: the loss, or a gradient, of its {size} "
            "examples was not finite; nothing was changed by them"
        )
        if self._skipped >= MOST_SKIPPED:
            raise NonFiniteLossError(
                f"Not finite: the loss, or gradients, of {self._skipped} steps in a row, up to "
                f"{where}. All were skipped (--on_nonfinite=skip), and nothing is learnt any more: "
                "the weights themselves may have become too large. Go on from an older checkpoint "
                "with a lower learning rate, or clip gradients."
            )
