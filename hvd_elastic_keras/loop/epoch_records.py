"""Records the ends of epochs in the job's event log."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd_elastic_keras.common.events import EpochEnd
from hvd_elastic_keras.loop.observer import EndedEpoch, Observer, Round
from hvd_elastic_keras.step.step_result import Logs
from hvd_elastic_keras.worker.reporter import Reporter

MOST_NUMBERS = 1000
"""Size of the largest array in an entry. The log is read as a whole, and messages have a limit."""


class EpochRecords(Observer):
    """Records each end of an epoch with its logs.

    Rank 0 may be lost before its message is sent: the next rank 0 sends the newest end again.

    Args:
      audited: whether the epochs have a ledger.
    """

    def __init__(self, reporter: Reporter, *, audited: bool) -> None:
        self._reporter = reporter
        self._audited = audited
        self._is_root = False
        self._newest: EpochEnd | None = None

    def on_round(self, entered: Round) -> None:
        """Sends the newest end again if the former rank 0 may not have sent it."""
        was_root, self._is_root = self._is_root, entered.place.rank == 0
        if self._is_root and not was_root and self._newest:
            self._reporter.tell("", self._newest)

    def after_epoch(self, epoch: EndedEpoch) -> None:
        """Records the end of an epoch."""
        self._newest = EpochEnd(
            epoch=epoch.cursor.epoch,
            step=epoch.cursor.global_step,
            metrics=plain(epoch.logs),
            audited=self._audited,
        )
        if self._is_root:
            self._reporter.tell("", self._newest)


def plain(logs: Logs) -> dict[str, Any]:
    """Returns logs as JSON values: small arrays as lists, large arrays as a summary.

    >>> plain({"loss": 0.5, "of_classes": np.array([1.0, 0.0])})
    {'loss': 0.5, 'of_classes': [1.0, 0.0]}
    >>> plain({"confusion": np.eye(100)})
    {'confusion': {'shape': [100, 100], 'mean': 0.01, 'min': 0.0, 'max': 1.0}}
    """
    return {name: _plain(value) for name, value in logs.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, int | float):
        return value
    array = np.asarray(value)
    if array.size <= MOST_NUMBERS or array.dtype.kind not in "biuf":
        return array.tolist()
    found = {"mean": array.mean(), "min": array.min(), "max": array.max()}
    return {"shape": list(array.shape), **{name: float(v) for name, v in found.items()}}
