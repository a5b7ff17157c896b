"""The end of data of unknown length: all workers have to reach it at the same place.

A worker that finds the end takes a step that stops, as when callbacks want to stop. So the
others learn of it within their own step, at no cost to other steps. Afterwards the workers ask
each other whether the data or a callback has stopped the step.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from hvd_elastic_keras.common.batch_plan import Share
from hvd_elastic_keras.common.errors import DataError
from hvd_elastic_keras.common.protocol import Assignment
from hvd_elastic_keras.data.examples import structure
from hvd_elastic_keras.data.input.interfaces import LocalBatch
from hvd_elastic_keras.data.plan.partition import StepShare
from hvd_elastic_keras.loop.phase import PhaseRunner
from hvd_elastic_keras.state.cursor import Cursor
from hvd_elastic_keras.worker.horovod_runtime import Communicator


@dataclasses.dataclass(frozen=True)
class LastBatch:
    """What a worker has read last, and its share of the next batch."""

    batch: LocalBatch | None
    share: Share


def end_of_data(
    runner: PhaseRunner,
    communicator: Communicator,
    cursor: Cursor,
    place: Assignment,
    last: LastBatch,
) -> None:
    """Notes that the data have ended before the step at `cursor`, which was not known before.

    Raises:
      DataError: the data of other workers have not ended.
    """
    if place.size > 1:
        announce_end(runner, communicator, cursor, last)
    runner.input.confirm_end()


def announce_end(
    runner: PhaseRunner, communicator: Communicator, cursor: Cursor, last: LastBatch
) -> None:
    """Tells all others that this worker's data have ended before the step at `cursor`.

    Raises:
      DataError: the data of other workers have not ended.
    """
    if not runner.input.ends_unannounced:
        return
    with communicator.collective():
        runner.step(_stand_in(runner, cursor, last), cursor.global_step, True)
    data_have_ended(runner, communicator, cursor, mine=True)


def _stand_in(runner: PhaseRunner, cursor: Cursor, last: LastBatch) -> LocalBatch:
    """Returns the batch of the step that stops: rows read before, in place of those that lack.

    It has this worker's part of a batch of the usual size. Others may have a batch, and then all
    workers make the same collectives; and the whole batch has the shapes that the step expects.
    """
    data, usual, batch = runner.input, runner.input.global_batch_size, last.batch
    if data.per_row is None or (batch is not None and len(batch.worker_batches)):
        nothing = StepShare(0, 0, np.zeros(1, np.int32), 0, num_examples_of_step=usual)
        return LocalBatch(data.nothing, nothing, np.zeros(0, np.int64))
    part = data.part(cursor.step, last.share, usual)
    some = None if batch is None or batch.is_whole else batch.data
    count = part.stop - part.start
    rows = structure.filled(data.nothing, some, count, data.per_row)
    return LocalBatch(rows, part, np.zeros(count, np.int64))


def data_have_ended(
    runner: PhaseRunner, communicator: Communicator, cursor: Cursor, *, mine: bool = False
) -> bool:
    """Whether a step was stopped by the end of all workers' data, and not by callbacks.

    Args:
      mine: whether the data of this worker have ended.

    Raises:
      DataError: the data of some workers have ended, and the data of others have not.
    """
    if not runner.input.ends_unannounced:
        return False
    with communicator.collective():
        ended = communicator.any_true(mine, "elastic_data_ended")
        more = communicator.any_true(not mine, "elastic_data_left")
    if ended and more:
        here = "ended" if mine else "not ended"
        raise DataError(
            f"The data of some workers have ended after {cursor.step} batches of this epoch, and "
            f"those of others have not; in this worker they have {here}. Every worker runs the "
            "whole script: give all the same data, and seed all that is random before they are "
            "made."
        )
    return ended
