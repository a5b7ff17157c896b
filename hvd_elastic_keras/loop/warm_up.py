"""Traces and runs each step once, alone and without effect, before a worker joins."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from hvd_elastic_keras.common.batch_plan import Share
from hvd_elastic_keras.data.examples import structure
from hvd_elastic_keras.data.input.interfaces import LocalBatch
from hvd_elastic_keras.data.plan.partition import step_share_of_batch
from hvd_elastic_keras.keras_internals.model_variables import ModelVariables
from hvd_elastic_keras.loop.phase import PhaseRunner
from hvd_elastic_keras.step.partitioned_step import PartitionedStep
from hvd_elastic_keras.worker.rounds import Rounds

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
    before = variables.values()
    try:
        with rounds.alone():
            for phase in phases:
                batch = _few_rows(phase)
                # This worker is alone: its part of the batch counts as the whole batch here.
                count = int(batch.part.offsets[-1])
                part = dataclasses.replace(batch.part, num_examples_of_step=count)
                batch = dataclasses.replace(batch, part=part)
                if isinstance(phase.step, PartitionedStep):
                    phase.step.warm_up(
                        batch, stops=stops, has_others=has_others, begins_alone=begins_alone
                    )
    finally:
        variables.assign(before)


def _few_rows(phase: PhaseRunner) -> LocalBatch:
    """Returns the first micro-batch, or the first two if they have one row each.

    If the workers do not share a batch, it has a single micro-batch, the whole batch.
    """
    count = phase.input.num_micro_batches
    size = structure.num_examples(phase.input.first_batch())
    # Batches of one row have a graph of their own.
    return first_rows(phase, min(count, 2 if size <= count else 1))


def first_rows(phase: PhaseRunner, num_micro_batches: int) -> LocalBatch:
    """Returns the first `num_micro_batches` micro-batches of the first batch."""
    whole = phase.input.first_batch()
    count = phase.input.num_micro_batches
    size = structure.num_examples(whole)
    part = step_share_of_batch(size, -(-size // count), Share(0, num_micro_batches), count)
    ids = np.arange(part.stop - part.start)
    return LocalBatch(structure.cut(whole, part.start, part.stop, phase.input.per_row), part, ids)
