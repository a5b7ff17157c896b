"""The learning rate of a batch that grows with the workers, from round to round."""

from __future__ import annotations

from hvd_elastic_keras.console import counted
from hvd_elastic_keras.protocol import Assignment
from hvd_elastic_keras.training.learning_rate_scale import Growth, Ramp
from hvd_elastic_keras.training.progress import ProgressDisplay
from hvd_elastic_keras.training.world import World
from hvd_elastic_keras.worker.session import Session


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
