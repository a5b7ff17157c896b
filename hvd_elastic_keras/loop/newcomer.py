"""What a worker does before it asks for a place in a round.

It traces and runs each step once, alone and without effect.

It also reads its input up to the position of the others. A dataset that can only be read from the
front may take minutes to reach the present step. In a round, all workers would wait for that. So a
newcomer asks the master where the others read, reads up to there, asks again, and joins when it is
close. It goes on reading along until it has its place: a spare may wait hours for one.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from hvd_elastic_keras.common.batch_plan import Share
from hvd_elastic_keras.common.protocol import InputPosition
from hvd_elastic_keras.data.examples import structure
from hvd_elastic_keras.data.input.interfaces import LocalBatch
from hvd_elastic_keras.data.plan.partition import step_share_of_batch
from hvd_elastic_keras.keras_internals.model_variables import ModelVariables
from hvd_elastic_keras.loop.observer import Observer
from hvd_elastic_keras.loop.phase import PhaseRunner
from hvd_elastic_keras.state.cursor import Cursor, Phase
from hvd_elastic_keras.step.partitioned_step import PartitionedStep
from hvd_elastic_keras.worker.rounds import Rounds

log = logging.getLogger(__name__)
LARGE_BYTES = 32 * 2**20
"""Size of all variables from which on their values are not held in memory twice."""


def warm_up(
    rounds: Rounds,
    variables: ModelVariables,
    phases: Sequence[PhaseRunner],
    *,
    has_others: bool = True,
    begins_alone: bool = True,
) -> None:
    """Compiles the steps and warms up their kernels. All variables keep their values.

    Args:
      has_others: whether other workers may ever take part in a step.
      begins_alone: whether no other worker takes part in the first steps. If one does, the graph of
        a step alone is run for the first time when it is needed, which may never be.
    """
    # Assigned values need memory beside the old values, which are kept here. The workers of a large
    # model would never need as much memory again. So its step computes all and assigns nothing.
    stops = variables.num_bytes >= LARGE_BYTES
    with variables.unchanged(), rounds.alone():
        for phase in phases:
            if isinstance(phase.step, PartitionedStep):
                warm = functools.partial(
                    phase.step.warm_up,
                    stops=stops,
                    has_others=has_others,
                    begins_alone=begins_alone,
                )
                _with_few_rows(phase, warm, is_whole=phase.step.computes_whole)


def _with_few_rows(
    phase: PhaseRunner, warm: Callable[[LocalBatch], None], *, is_whole: bool
) -> None:
    """Calls a function with the first micro-batch, or the first two if they have one row each.

    If `is_whole`, the function gets the whole batch. So it does if the step does not take a few
    rows: it may count on the size of its batches, as `tf.reshape(x, (32, 8))` does.
    """
    count = phase.input.num_micro_batches
    size = structure.num_examples(phase.input.first_batch())
    few = min(count, 2 if size <= count else 1)  # batches of one row have a graph of their own
    if is_whole:
        few = count
    try:
        warm(_as_whole_batch(first_rows(phase, few)))
    except tf.errors.InvalidArgumentError:
        if few == count:
            raise
        warm(_as_whole_batch(first_rows(phase, count)))


def _as_whole_batch(batch: LocalBatch) -> LocalBatch:
    """Returns a part of a batch as a batch of its own: the worker is alone."""
    count = int(batch.part.offsets[-1])
    part = dataclasses.replace(batch.part, num_examples_of_step=count)
    return dataclasses.replace(batch, part=part)


def first_rows(phase: PhaseRunner, num_micro_batches: int) -> LocalBatch:
    """Returns the first `num_micro_batches` micro-batches of the first batch."""
    whole = phase.input.first_batch()
    count = phase.input.num_micro_batches
    size = structure.num_examples(whole)
    part = step_share_of_batch(size, -(-size // count), Share(0, num_micro_batches), count)
    ids = np.arange(part.stop - part.start)
    return LocalBatch(structure.cut(whole, part.start, part.stop, phase.input.per_row), part, ids)


CLOSE_S = 1.0
"""A newcomer is close if it catches up in less time than this."""
ASK_INTERVAL_S = 0.5
"""Equal to the interval at which heartbeats tell where the others read."""


class ReadAlong(Observer):
    """Reads along in a thread until this worker has its first place.

    Args:
      runners: runners of the phases that have an input.
      others_read: returns the position of the other workers; None if there are none.
    """

    def __init__(
        self,
        runners: Mapping[Phase, PhaseRunner],
        others_read: Callable[[], InputPosition | None],
    ) -> None:
        self._runners = runners
        self._others_read = others_read
        self._close = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="elastic-read-along", daemon=True)

    def start(self, gives_up: Callable[[], bool]) -> None:
        """Starts reading. Returns when this worker is close, or `gives_up` returns True."""
        self._thread.start()
        while not self._close.wait(ASK_INTERVAL_S) and not gives_up():
            pass

    def after_entering(self) -> None:
        """Stops the thread. Returns when it no longer uses the inputs."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            took_before = math.inf
            while not self._stopped.is_set():
                began = time.monotonic()
                position = self._others_read()
                if position is not None:
                    self._read_up_to(position)
                took = time.monotonic() - began
                # A worker that reads no faster than the others train will never be closer.
                if took < CLOSE_S or took >= took_before:
                    self._close.set()
                took_before = took
                self._stopped.wait(ASK_INTERVAL_S)
        except Exception as error:  # the user's dataset may raise anything
            log.info("reading along ended: %s", error)  # a step that meets it again reports it
        finally:
            self._close.set()

    def _read_up_to(self, position: InputPosition) -> None:
        phase = Phase(position.phase)
        cursor = Cursor(
            epoch=position.epoch,
            phase=phase,
            step=position.step,
            worker_batches=position.worker_batches,
        )
        runner = self._runners.get(phase)
        if runner is not None:
            runner.input.know_batches_per_pass(position.batches_per_pass)
            runner.read_up_to(cursor, goes_on=lambda: not self._stopped.is_set())
