"""Traces and runs each step once, alone and without effect, before a worker joins."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hvd_elastic_keras.training.batch_plan import Share
from hvd_elastic_keras.training.variables import ModelVariables
from hvd_elastic_keras.worker.communicator import Communicator

if TYPE_CHECKING:
    from hvd_elastic_keras.training.loop import PhaseRunner


def warm_up(
    communicator: Communicator, variables: ModelVariables, phases: Sequence[PhaseRunner]
) -> None:
    """Leaves compiled steps and warm kernels behind; all variables keep their values."""
    before = variables.values()
    communicator.start_alone()
    try:
        with communicator.tracing():
            for phase in phases:
                batch = next(phase.pipeline.batches(0, Share(0, 1), 0))
                # Alone with one micro-batch: that is the whole batch here.
                count = int(batch.part.offsets[-1])
                part = dataclasses.replace(batch.part, num_examples_of_step=count)
                phase.step(dataclasses.replace(batch, part=part), 0)
    finally:
        communicator.shut_down()
        variables.assign(before)
