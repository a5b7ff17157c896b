"""Runs `fit` with the partitioned step, on workers that are threads of this process.

`SharedPartitionedStep` is the real step. Each worker computes its part of the batch eagerly, and
meets the others in the collectives; then all of it is assigned, once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

from hvd_elastic_keras import ElasticCallback
from hvd_elastic_keras.common import env
from hvd_elastic_keras.data.examples import structure
from hvd_elastic_keras.data.input.interfaces import LocalBatch
from hvd_elastic_keras.step import compiled_steps
from hvd_elastic_keras.step.partition.collectives import OfRows
from hvd_elastic_keras.step.partition.thread_collectives import (
    Meeting,
    ThreadCollectives,
    in_threads,
)
from hvd_elastic_keras.step.partitioned_step import PartitionedStep
from hvd_elastic_keras.step.step_result import StepResult, python_logs
from hvd_elastic_keras.step.worker_rows import Place
from tests.harness import shared_fit
from tests.harness.keras_models.case import Case
from tests.harness.shared_fit import Outcome


class SharedPartitionedStep(PartitionedStep):
    """A step that `workers` workers share; each number of workers is warmed up alone."""

    workers = 1

    def warm_up(self, batch: LocalBatch, *, stops: bool, has_others: bool) -> None:
        """Traces nothing for others: they compute eagerly."""
        super().warm_up(batch, stops=stops, has_others=False)

    def __call__(
        self, batch: LocalBatch, step: int, stop: bool = False, arrive: Any = None
    ) -> StepResult:
        """The step of all workers."""
        if self.workers == 1 or stop:
            return super().__call__(batch, step, stop)
        meeting = Meeting(self.workers)
        size = int(batch.part.offsets[-1])
        bounds = [size * i // self.workers for i in range(self.workers + 1)]
        if self._normalises:  # whole micro-batches
            offsets = batch.part.offsets
            bounds = [
                int(offsets[(len(offsets) - 1) * i // self.workers])
                for i in range(self.workers + 1)
            ]
        assert self.analysis

        def worker(number: int) -> Any:
            low, high = bounds[number : number + 2]
            numbers = (step, low, high - low, size, 0, 0)
            place = Place.of(
                tf.constant([*numbers, *[0] * self.tail.pieces], tf.int64), self.tail.pieces
            )
            part = dataclasses.replace(
                batch.part, offsets=np.array([0, high - low]), first_micro_batch=0
            )
            own = dataclasses.replace(batch, data=structure.cut(batch.data, low, high, self._batch.per_row), part=part)
            rows = self._flat(own)
            if self._normalises:
                rows[-1] = self._flat(batch)[-1][low:high]
            collectives = OfRows(ThreadCollectives(meeting, number), place.has_rows)
            try:
                computed, outputs = self.computed(rows, place, collectives)
            except BaseException:
                meeting.abort()
                raise
            return computed.values, outputs

        results = in_threads(worker, self.workers)
        values, outputs = results[0]
        self.assign(values)
        logs = self.captured.results(outputs)
        return StepResult(python_logs(logs) if isinstance(logs, dict) else {})


def shared(case: Case, workers: tuple[int, ...] = (1, 3)) -> Iterator[Outcome]:
    """The outcomes of the same `fit` for several numbers of workers."""
    model, begin = shared_fit._model(case), shared_fit._Begin(sets_back=True)
    with (
        mock.patch.object(env, "is_step_partitioned", return_value=True),
        mock.patch.object(compiled_steps, "PartitionedStep", SharedPartitionedStep),
    ):
        for number in workers:
            with mock.patch.object(SharedPartitionedStep, "workers", number):
                yield shared_fit._fit(case, model, begin, [ElasticCallback()])
