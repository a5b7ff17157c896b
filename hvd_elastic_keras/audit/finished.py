"""Notes that training gives to an audit: steps and epochs that are finished."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Protocol

from hvd_elastic_keras.common.protocol import Assignment
from hvd_elastic_keras.data.input.interfaces import LocalBatch
from hvd_elastic_keras.data.plan.example_ids import Ids
from hvd_elastic_keras.state.cursor import Cursor


@dataclasses.dataclass(frozen=True)
class FinishedStep:
    """A finished step, as all workers know it.

    Attributes:
      step: number of the optimizer step, from 0.
      epoch, epoch_step: its place in the data.
      worker_batches: sizes of the worker batches in the step, if the batch grows with the workers.
      first_worker_batch: number of the first worker batch.
      round, members: the round that has taken the step, and its members by rank.
      shares: micro-batches of a full global batch, by rank.
      num_examples: number of examples in the global batch.
      digest: digest of the examples that the workers have read.
    """

    step: int
    epoch: int
    epoch_step: int
    first_worker_batch: int
    worker_batches: Sequence[int]
    round: int
    members: Sequence[str]
    shares: Sequence[int]
    num_examples: int
    digest: int


def finished_step(
    cursor: Cursor, batch: LocalBatch, place: Assignment, shares: Sequence[int], digest: int
) -> FinishedStep:
    """Returns the note of the step that was taken at `cursor`."""
    return FinishedStep(
        step=cursor.global_step,
        epoch=cursor.epoch,
        epoch_step=cursor.step,
        first_worker_batch=cursor.worker_batches,
        worker_batches=batch.worker_batches,
        round=place.round,
        members=place.members,
        shares=shares,
        num_examples=batch.part.num_examples_of_step,
        digest=digest,
    )


@dataclasses.dataclass(frozen=True)
class FinishedEpoch:
    """The end of an epoch, from optimizer step `first_step` on; see `ledger_file.Closed`."""

    epoch: int
    first_step: int
    steps: int
    whole: bool


Note = FinishedStep | FinishedEpoch


class Plan(Protocol):
    """Knows which examples had to be used; implemented by `PhaseRunner`."""

    def planned_ids(self, steps: Sequence[FinishedStep]) -> list[list[Ids]]:
        """Returns for each step the ids that each rank had to use. All steps are of one epoch."""

    def ids_of_epoch(self, epoch: int) -> Iterable[int] | None:
        """Returns all ids of an epoch; None if only its steps tell them."""
