"""Training with a batch that grows with the workers: what `loop.py` does differently then."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from hvd_elastic_keras.console import counted
from hvd_elastic_keras.data.per_worker import PerWorkerInput
from hvd_elastic_keras.data.pipeline import LocalBatch
from hvd_elastic_keras.protocol import Assignment
from hvd_elastic_keras.training.balance import Balance
from hvd_elastic_keras.training.cursor import Cursor
from hvd_elastic_keras.training.learning_rate_scale import Growth, Ramp
from hvd_elastic_keras.training.loop import PhaseRunner
from hvd_elastic_keras.training.progress import ProgressDisplay
from hvd_elastic_keras.training.world import World
from hvd_elastic_keras.worker.session import Session


@dataclasses.dataclass(frozen=True)
class PerWorkerRunner(PhaseRunner):
    """The training phase: each worker takes whole portions."""

    input: PerWorkerInput

    def batches(self, cursor: Cursor, rank: int, balance: Balance) -> Iterator[LocalBatch]:
        """See `PhaseRunner`."""
        return self.input.of_worker(cursor.epoch, cursor.portions, rank, len(balance.shares))

    def steps(self, cursor: Cursor, workers: int) -> int | None:
        """See `PhaseRunner`: those done, and those left with the present workers."""
        left = self.input.portions_left(cursor.epoch, cursor.portions)
        return None if left is None else cursor.step - (-left // workers)


class GrowingBatch:
    """Lets the learning rate follow the number of workers, and rank 0 tell of it.

    The ramp of a round is made from that of the last finished step, and counts only once a step
    has used it: rounds that break before leave no trace, on no worker.

    Args:
      growth: the rule.
      world: what the graph of a step reads.
    """

    def __init__(
        self, growth: Growth, world: World, session: Session, display: ProgressDisplay
    ) -> None:
        self._growth = growth
        self._world = world
        self._session = session
        self._display = display
        self._size = 0

    def enter_round(self, committed: Ramp, place: Assignment, step: int) -> Ramp:
        """The ramp of a round that begins at optimizer step `step`."""
        ramp = self._growth.ramp(committed, place.size, step)
        changed, self._size = place.size != self._size, place.size
        if changed and place.rank == 0 and place.rendezvous:
            self._tell(ramp, place.size, step)
        return ramp

    def before_step(self, ramp: Ramp, step: int) -> None:
        """Sets the scale of a step."""
        self._world.scale_learning_rate(ramp.at(step))

    def _tell(self, ramp: Ramp, workers: int, step: int) -> None:
        growth, left = self._growth, ramp.steps_left(step)
        size = growth.batch_size(workers)
        self._session.record(
            "batch_changed",
            step=step,
            workers=workers,
            batch_size=size,
            learning_rate_scale=ramp.end,
            learning_rate_scale_now=ramp.at(step),
            warm_up_steps=left,
        )
        warm_up = f" after {counted(left, 'step')} of warm-up" if left else ""
        self._display.note(
            f"batch {size} = {counted(workers, 'worker')} x {growth.batch_size_per_worker}; "
            f"learning rate x {ramp.end:.4g}{warm_up}"
        )
