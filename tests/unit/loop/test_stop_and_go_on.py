"""A stopped training has one checkpoint of its last step, and continues from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras import Trainer, TrainingConfig
from hvd_elastic_keras.common import events, protocol
from hvd_elastic_keras.common.errors import WorkerLeavingError
from hvd_elastic_keras.worker.reporter import TerminalReporter
from hvd_elastic_keras.worker.session import EntryReport, SoloSession

X = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
STOPS_AFTER = 7
"""Steps. An epoch has 5."""


class Stopped(SoloSession, TerminalReporter):
    """Has to leave after some steps, and notes which checkpoints were written."""

    def __init__(self) -> None:
        super().__init__()
        self._reporter = self
        self.saved: list[int] = []
        self.change_pending = False
        self.changed: Callable[[], None] = lambda: None

    def on_change(self, call: Callable[[], None]) -> None:
        """Remembers the function to call."""
        self.changed = call

    def at(self, phase: str, step: int, progress: int, reading: Any = None) -> None:
        """Gives the order to leave before the last step."""
        if step == STOPS_AFTER - 1:
            self.change_pending = True
            self.changed()

    def enter(self, report: EntryReport) -> protocol.Assignment:
        """Gives a place, once."""
        if report.has_state:
            raise WorkerLeavingError("the job stops")
        return super().enter(report)

    def record(self, entry: events.WorkerEntry) -> None:
        """Notes a checkpoint."""
        if isinstance(entry, events.CheckpointSaved):
            self.saved.append(entry.step)


def trainer(job_dir: Path | None, session: Any = None, every_n_steps: int = 0) -> Trainer:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse", metrics=["mae"])
    config = TrainingConfig(
        global_batch_size=8,
        epochs=3,
        checkpoint_every_n_epochs=0,
        checkpoint_every_n_steps=every_n_steps,
    )
    return Trainer(model, (X, X[:, :1]), config=config, job_dir=job_dir, session=session)


@pytest.mark.parametrize("every_n_steps", [STOPS_AFTER, 4])
def test_the_last_step_is_written_once_and_gone_on_with(every_n_steps: int, tmp_path: Path) -> None:
    session = Stopped()
    with pytest.raises(WorkerLeavingError):
        trainer(tmp_path, session, every_n_steps).fit()
    assert session.saved == ([4, STOPS_AFTER] if every_n_steps == 4 else [STOPS_AFTER])
    undisturbed, again = trainer(None), trainer(tmp_path)
    expected, found = undisturbed.fit(), again.fit()
    assert found.history == expected.history
    for mine, theirs in zip(
        again.model.get_weights(), undisturbed.model.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)
