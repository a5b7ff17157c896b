"""From an equal state, a step is the same for any number of workers, in every step of a training.

Ends say little: two trainings that differ by one rounding may go far apart. So each step of one
training is also computed by 1, 2 and 3 workers from a copy of the same state, in one process (see
`tests/harness/shared_fit.py`), and what it has changed is compared.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

keras = pytest.importorskip("keras")
pytest.importorskip("horovod.tensorflow")

from ml_collections import ConfigDict

from hvd_elastic_keras import Trainer, TrainingConfig
from hvd_elastic_keras.data.input.interfaces import LocalBatch
from hvd_elastic_keras.keras_internals.model_variables import variables_of
from hvd_elastic_keras.step import compiled_steps
from hvd_elastic_keras.step.step_result import StepResult
from model_zoo import digits_cnn
from tests.harness.recorded_steps import Difference, difference, state_of
from tests.harness.shared_fit import StepInThreads

UPDATE = 3e-5
"""Length of the difference / length of what a step changes; 7e-6 was the largest. Adam divides by
roots of small numbers."""
ENDS = (15, 30)
"""The training goes on from a checkpoint in the middle of its first epoch, of 23 steps."""


class ComparedStep(StepInThreads):
    """Computes each step by 1, 2 and 3 workers, and goes on with another number each time."""

    differences: list[Difference]

    def __call__(
        self, batch: LocalBatch, step: int, stop: bool = False, arrive: Any = None
    ) -> StepResult:
        """The step, after it has been compared."""
        variables = variables_of(self.model)
        values, before = variables.values(), state_of(self.model)
        after = []
        for workers in (1, 2, 3):
            self.workers = workers
            super().__call__(batch, step, stop)
            after.append(state_of(self.model))
            variables.assign(values)
        for state in after[1:]:
            self.differences.append(difference(step, before, after[0], state))
        self.workers = 3 - step % 3
        return super().__call__(batch, step, stop)


def test_a_step_of_1_2_and_3_workers_differs_by_rounding_only_through_failures_and_a_reload(
    tmp_path: Path,
) -> None:
    found: dict[str, list[Difference]] = {"differences": []}
    with (
        mock.patch.object(compiled_steps, "PartitionedStep", ComparedStep),
        mock.patch.multiple(ComparedStep, create=True, **found),
    ):
        for end in ENDS:
            # The second one is a newcomer, with weights of its own until it has read the state.
            keras.utils.set_random_seed(end)
            model = digits_cnn.model(ConfigDict())
            model.compile(keras.optimizers.Adam(2e-3), digits_cnn.loss(), metrics=["accuracy"])
            config = TrainingConfig(
                global_batch_size=64, micro_batch_size=8, seed=7, steps=end, epochs=9
            )
            Trainer(model, digits_cnn.dataset("train"), config=config, job_dir=tmp_path).fit()
    steps = [d.step for d in found["differences"]]
    assert steps == [step for step in range(ENDS[-1]) for _ in (2, 3)]
    assert 0 < max(d.largest for d in found["differences"]) < UPDATE
