"""The training phase where the batch grows with the workers: each takes a portion of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from hvd_elastic_keras.data.per_worker import PerWorkerInput
from hvd_elastic_keras.data.pipeline import LocalBatch
from hvd_elastic_keras.ledger import Ids
from hvd_elastic_keras.training.audit import FinishedStep
from hvd_elastic_keras.training.balance import Balance
from hvd_elastic_keras.training.cursor import Cursor
from hvd_elastic_keras.training.phases import PhaseRunner


@dataclasses.dataclass(frozen=True)
class PerWorkerRunner(PhaseRunner):
    """The training phase: each worker takes whole portions."""

    input: PerWorkerInput

    def batches(self, cursor: Cursor, rank: int, balance: Balance) -> Iterator[LocalBatch]:
        """See `PhaseRunner`."""
        return self.input.of_worker(cursor.epoch, cursor.portions, rank, len(balance.shares))

    def read_up_to(self, cursor: Cursor, goes_on: Callable[[], bool]) -> None:
        """See `PhaseRunner`."""
        self.input.read_up_to(cursor.epoch, cursor.portions, goes_on)

    def planned_ids(self, steps: Sequence[FinishedStep]) -> list[list[Ids]]:
        """See `PhaseRunner`."""
        return [
            self.input.ids_of_portions(step.epoch, step.first_portion, step.portions)
            for step in steps
        ]

    def steps(self, cursor: Cursor, workers: int) -> int | None:
        """See `PhaseRunner`: those done, and those left with the present workers."""
        left = self.input.portions_left(cursor.epoch, cursor.portions)
        return None if left is None else cursor.step - (-left // workers)
