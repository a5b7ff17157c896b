"""A batch that grows with the workers: its training phase, and its learning rate."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from hvd_elastic_keras.audit.finished import FinishedStep
from hvd_elastic_keras.common.events import BatchChanged
from hvd_elastic_keras.data.input.interfaces import LocalBatch
from hvd_elastic_keras.data.input.per_worker import PerWorkerInput
from hvd_elastic_keras.data.plan.example_ids import Ids
from hvd_elastic_keras.keras_internals.learning_rate import Growth, Ramp
from hvd_elastic_keras.loop.observer import Policy, Round, TakenStep
from hvd_elastic_keras.loop.phase import PhaseRunner
from hvd_elastic_keras.loop.shares import Balance
from hvd_elastic_keras.loop.start_notices import Announcer
from hvd_elastic_keras.observe.console import counted
from hvd_elastic_keras.state.cursor import Cursor
from hvd_elastic_keras.state.run_state import RunState
from hvd_elastic_keras.step.world import World


@dataclasses.dataclass(frozen=True)
class PerWorkerRunner(PhaseRunner):
    """A training phase in which each worker takes whole batches."""

    input: PerWorkerInput

    def batches(self, cursor: Cursor, rank: int, balance: Balance) -> Iterator[LocalBatch]:
        """See `PhaseRunner`."""
        return self.input.of_worker(cursor.epoch, cursor.worker_batches, rank, len(balance.shares))

    def read_up_to(self, cursor: Cursor, goes_on: Callable[[], bool]) -> None:
        """See `PhaseRunner`. Stops before the previous step, which may have to be taken again."""
        of_step = -(-cursor.worker_batches // max(1, cursor.step))
        self.input.read_up_to(cursor.epoch, cursor.worker_batches - of_step, goes_on)

    def planned_ids(self, steps: Sequence[FinishedStep]) -> list[list[Ids]]:
        """See `PhaseRunner`."""
        return [
            self.input.ids_of_worker_batches(
                step.epoch, step.first_worker_batch, step.worker_batches
            )
            for step in steps
        ]

    def steps(self, cursor: Cursor, workers: int) -> int | None:
        """See `PhaseRunner`. Adds the steps done and the steps left with the present workers."""
        left = self.input.worker_batches_left(cursor.epoch, cursor.worker_batches)
        return None if left is None else cursor.step - (-left // workers)


class GrowingBatch(Policy):
    """Lets the learning rate follow the number of workers. Rank 0 announces each change.

    This policy changes the state: `RunState.ramp` is the scale of the learning rate. The ramp of
    a round is made from the ramp of the last finished step. It becomes part of the state only when
    a step has used it. So a round that breaks before its first step leaves no trace on any worker.

    Args:
      growth: the rule.
      world: the variables that the graph of a step reads.
    """

    def __init__(self, growth: Growth, world: World, state: RunState, announcer: Announcer) -> None:
        self._growth = growth
        self._world = world
        self._state = state
        self._announcer = announcer
        self._ramp = Ramp()
        self._size = 0

    def after_sync(self, entered: Round) -> None:
        """Makes the ramp of a round."""
        place, step = entered.place, entered.cursor.global_step
        self._ramp = self._growth.ramp(self._state.ramp, place.size, step)
        changed, self._size = place.size != self._size, place.size
        if changed and place.rendezvous:
            self._tell(self._ramp, place.size, step)

    def before_step(self, cursor: Cursor) -> None:
        """Sets the scale of a step."""
        self._world.scale_learning_rate(self._ramp.at(cursor.global_step))

    def on_commit(self, step: TakenStep) -> None:
        """Makes the ramp part of the state: a step has used it."""
        self._state.ramp = self._ramp

    def _tell(self, ramp: Ramp, workers: int, step: int) -> None:
        growth, left = self._growth, ramp.steps_left(step)
        size = growth.batch_size(workers)
        warm_up = f" after {counted(left, 'step')} of warm-up" if left else ""
        self._announcer.announce(
            f"batch {size} = {counted(workers, 'worker')} x {growth.batch_size_per_worker}; "
            f"learning rate x {ramp.end:.4g}{warm_up}",
            BatchChanged(
                step=step,
                workers=workers,
                batch_size=size,
                learning_rate_scale=ramp.end,
                learning_rate_scale_now=ramp.at(step),
                warm_up_steps=left,
            ),
        )
