"""A phase of the training: its input and its compiled step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np

from hvd_elastic_keras.audit.finished import FinishedStep
from hvd_elastic_keras.common.batch_plan import Share, successive
from hvd_elastic_keras.common.protocol import InputPosition
from hvd_elastic_keras.data.input.interfaces import Input, LocalBatch
from hvd_elastic_keras.data.plan.example_ids import Ids
from hvd_elastic_keras.loop.shares import Balance
from hvd_elastic_keras.state.cursor import Cursor
from hvd_elastic_keras.step.late_step import Arrive
from hvd_elastic_keras.step.step_result import StepResult


class Step(Protocol):
    """An atomic step that all workers of a round take together.

    It is a `PartitionedStep` or a `PredictStep`.
    """

    @property
    def calls_python(self) -> bool:
        """Whether the step calls Python code of the user that may change the user's values."""

    def __call__(
        self, batch: LocalBatch, step: int, stop: bool = False, arrive: Arrive | None = None
    ) -> StepResult:
        """Takes the step together with all workers; see `PartitionedStep`."""


@dataclasses.dataclass(frozen=True)
class PhaseRunner:
    """The input of a phase and its compiled step."""

    input: Input
    step: Step

    def batches(self, cursor: Cursor, rank: int, balance: Balance) -> Iterator[LocalBatch]:
        """Returns a worker's part of the remaining batches of the epoch."""
        return self.input.batches(cursor.epoch, self.share(rank, balance), cursor.step)

    def share(self, rank: int, balance: Balance) -> Share:
        """Returns a worker's share of a batch."""
        return balance.share(rank, self.input.num_micro_batches)

    def position(self, cursor: Cursor, training: int) -> InputPosition:
        """Returns the position that newcomers need in order to read their input up to `cursor`."""
        return InputPosition(
            training=training,
            progress=cursor.progress,
            phase=cursor.phase.value,
            epoch=cursor.epoch,
            step=cursor.step,
            worker_batches=cursor.worker_batches,
            batches_per_pass=self.input.batches_per_pass,
        )

    def read_up_to(self, cursor: Cursor, goes_on: Callable[[], bool]) -> None:
        """Reads the input up to `cursor` if there is no other way there; see `Input.read_up_to`."""
        self.input.read_up_to(cursor.epoch, cursor.step, goes_on)

    def planned_ids(self, steps: Sequence[FinishedStep]) -> list[list[Ids]]:
        """See `audit.finished.Plan`."""
        examples = [(step.epoch_step, step.num_examples) for step in steps]
        found = self.input.ids(steps[0].epoch, examples) if steps else []
        return [self._parts(step, ids) for step, ids in zip(steps, found, strict=True)]

    def ids_of_epoch(self, epoch: int) -> Iterable[int] | None:
        """See `audit.finished.Plan`."""
        return self.input.ids_of_epoch(epoch)

    def _parts(self, step: FinishedStep, ids: Ids) -> list[Ids]:
        """Splits the ids of a step by rank."""
        parts = [
            self.input.part(step.epoch_step, share, step.num_examples)
            for share in successive(step.shares)
        ]
        return np.split(ids, np.cumsum([part.stop - part.start for part in parts])[:-1])

    def steps(self, cursor: Cursor, workers: int) -> int | None:
        """Steps of the epoch at `cursor`; None if known only after reading to the end."""
        return self.input.steps(cursor.epoch)
