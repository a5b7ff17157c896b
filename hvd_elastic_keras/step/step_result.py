"""The result of a step: the outcome, and the logs as callbacks see them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from hvd_elastic_keras.keras_internals.model_variables import unwrapped

Logs = dict[str, Any]
"""Names to floats, or to arrays for metrics that have several values."""


@dataclasses.dataclass(frozen=True)
class StepResult:
    """The outcome of a step, the same on every worker.

    Attributes:
      logs: as `train_step` returns them, over the whole global batch.
      change_pending: whether any worker knows of a membership change.
      stopped: whether some worker asked to stop; then nothing has changed.
      skipped: whether the step was skipped because a value was not finite; then nothing has
        changed, and there are no logs.
      seconds: by rank, seconds per example until the worker's part was done; empty if the step does
        not measure them.
      digest: digest of the ids of all examples that the workers have used, if the step is audited.
    """

    logs: Logs
    change_pending: bool = False
    stopped: bool = False
    skipped: bool = False
    seconds: Sequence[float] = ()
    digest: int = 0


def python_logs(logs: dict[str, Any]) -> Logs:
    """Returns logs as callbacks see them: sorted by name, numbers as floats."""
    result: Logs = {}
    for name, value in sorted(logs.items()):
        if isinstance(value, dict):
            result.update(python_logs(value))
        else:
            array = np.asarray(unwrapped(value))
            result[name] = float(array) if array.ndim == 0 else array
    return result
