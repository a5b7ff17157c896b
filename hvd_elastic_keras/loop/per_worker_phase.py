"""The training phase for a batch that grows with the workers: each worker takes its own batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from hvd_elastic_keras.audit.finished import FinishedStep
from hvd_elastic_keras.data.input.interfaces import LocalBatch
from hvd_elastic_keras.data.input.per_worker import PerWorkerInput
from hvd_elastic_keras.data.plan.example_ids import Ids
from hvd_elastic_keras.loop.phase import PhaseRunner
from hvd_elastic_keras.loop.speed_balance import Balance
from hvd_elastic_keras.state.cursor import Cursor


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
