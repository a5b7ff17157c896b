"""A model of 35 MB whose steps call no Python, so that a joiner's state may come late.

Its faults of the point "train" happen before a step, not in the middle of one.
"""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import keras

from hvd_elastic_keras.loop.step_taker import StepTaker
from hvd_elastic_keras.step.step_result import StepResult
from tests.harness import fault_model, faults
from tests.harness.fault_model import dataset

__all__ = ["dataset", "model"]

WIDTH = 60_000


def model() -> keras.Model:
    """Returns a model with batch norm and dropout."""
    layers = keras.layers
    network = keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Flatten(),
            layers.BatchNormalization(momentum=0.9),
            layers.Dense(WIDTH, activation="tanh"),
            layers.Dropout(0.3),
            layers.Dense(10),
        ]
    )
    network.compile(
        optimizer=keras.optimizers.SGD(1e-3, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    fault_model.watch(network)
    return network


def _with_faults() -> None:
    take = StepTaker.take

    def faulty_take(self: StepTaker, *args: Any, **kwargs: Any) -> StepResult:
        step = self._parts.state.cursor.global_step
        faults.happen("train", hvd.rank(), hvd.size(), step=step)
        return take(self, *args, **kwargs)

    StepTaker.take = faulty_take


_with_faults()
