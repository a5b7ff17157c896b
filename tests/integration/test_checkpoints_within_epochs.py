"""A job continues at the exact step of its newest checkpoint, wherever in an epoch that is."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import keras
import pytest

from tests.harness.fault_model import FaultPoint
from tests.harness.fit_job import FitJob, FitResult, gate
from tests.harness.fit_scenario import Scenario, scenario
from tests.harness.recorded_fit import Script
from tests.harness.small_classifier import VALIDATION, adam, arrays, classifier

Alone = Callable[[Scenario], FitResult]
NEWEST, HELD_AT = 8, 10
"""Steps, of 18 in 3 epochs. The checkpoint is written after two steps of the second epoch."""


@scenario(plain=False)
def interrupted_within_an_epoch(script: Script) -> None:
    """Trains with dropout, shuffled arrays, Adam, and callbacks that look at epochs."""
    model = classifier(FaultPoint(), keras.layers.Dropout(0.3), optimizer=adam())
    script.fit(
        model,
        **arrays(shuffle=True, validation_data=VALIDATION, epochs=3),
        callbacks=(
            keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1, min_delta=10.0),
            keras.callbacks.EarlyStopping(patience=9, restore_best_weights=True),
        ),
    )


@pytest.mark.slow
def test_after_the_death_of_all_workers_a_new_launcher_ends_as_if_nothing_had_happened(
    tmp_path: Path, fit_alone: Alone
) -> None:
    only = ("--checkpoint_every_n_epochs=0", f"--checkpoint_every_n_steps={NEWEST}")
    flags = ("--num_workers=2", "--audit", *only)
    plan = [gate(HELD_AT)]
    with FitJob(tmp_path, interrupted_within_an_epoch, *flags, plan=plan) as job:
        job.wait_for_fault("gate")
        job.wait_for("checkpoint_saved", lambda e: e["step"] == NEWEST)
        (job.job_dir / "checkpoints" / ".step-00000009.4711").mkdir()  # as if being written
        for worker in ("w0", "w1"):
            job.signal(worker, signal.SIGKILL)
        job.finish(exit_code=1)
    with FitJob(tmp_path, interrupted_within_an_epoch, *flags, plan=plan) as again:
        again.finish_with(["w2", "w3"], fit_alone(interrupted_within_an_epoch))
        (loaded,) = again.events("checkpoint_loaded")
        assert loaded["step"] == NEWEST
        again.assert_audited(epochs=3)
