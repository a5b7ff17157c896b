"""`gradient_accumulation_steps` of the user's optimizer keeps its meaning when slots change.

It counts optimizer steps, not the micro-batches of a step. The gradients that a few steps have
accumulated must survive workers that leave and join before they are applied.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.harness import alone, warm_python
from tests.harness.fault_model import FaultPoint
from tests.harness.faults import Fault
from tests.harness.fit_job import FitJob, FitResult
from tests.harness.fit_scenario import Scenario, scenario
from tests.harness.job import REPOSITORY, SMALL, Job, assert_same_weights, read_weights
from tests.harness.recorded_fit import Script
from tests.harness.small_classifier import arrays, classifier, sgd
from tests.integration.test_elastic_loop import SCRIPT, LoopJob

MODEL = REPOSITORY / "tests" / "harness" / "accumulation_model.py"
Weights = dict[str, np.ndarray]


def gates(point: str, *steps: int) -> list[Fault]:
    """Returns faults that hold rank 0 in the steps in which slots are revoked and granted."""
    names = ("revoke", "grant")
    return [
        Fault(name, point, 0, step=step, action="wait")
        for name, step in zip(names, steps, strict=True)
    ]


def revoke_and_grant(job: Job) -> list[dict[str, Any]]:
    """Goes from 3 workers to 2 and back to 3; returns the rounds."""
    job.wait_for_fault("revoke")
    job.ctl("revoke", "--slots=1")
    job.wait_for("round_opened", lambda e: e["round"] == 2)
    job.plan.open_gate("revoke")
    job.wait_for_fault("grant")
    job.ctl("grant", "--slots=1")
    job.wait_for("round_opened", lambda e: e["reason"] == "w3 joins")
    job.plan.open_gate("grant")
    job.finish()
    rounds = job.events("round_running")
    assert [e["world_size"] for e in rounds] == [3, 2, 3]
    assert [e["steps_lost"] for e in rounds] == [0, 0, 0]
    assert [e for e in job.events("worker_exited") if e["failed"]] == []
    return rounds


@pytest.mark.slow
def test_a_model_module_that_accumulates_5_steps_ends_with_the_weights_of_one_process(
    tmp_path: Path, expected_weights: Weights
) -> None:
    alone.train(MODEL, tmp_path / "alone", micro_batch_size=8, epochs=3)
    expected = read_weights(tmp_path / "alone" / "model.keras", tmp_path)
    plan = gates("train", 1, 2)  # when 5 and 10 steps have been applied
    command = (f"--model={MODEL}", *SMALL)
    with Job(tmp_path, "--num_workers=3", plan=plan, command=command) as job:
        rounds = revoke_and_grant(job)
        assert [e["step"] for e in rounds] == [0, 6, 11]  # with 1 step that is not applied
        assert_same_weights(job.weights(), expected)
    # A training without accumulation ends with other weights.
    assert any(np.abs(v - expected[n]).max() > 1e-2 for n, v in expected_weights.items())


@scenario(plain=True)
def accumulated_over_4_steps(script: Script) -> None:
    """Trains 18 steps. The last 2 are accumulated, but not applied."""
    optimizer = sgd(gradient_accumulation_steps=4)
    script.fit(classifier(FaultPoint(), optimizer=optimizer), **arrays(epochs=3))


@pytest.mark.slow
def test_a_fit_that_accumulates_4_steps_ends_like_plain_fit(
    tmp_path: Path, fit_alone: Callable[[Scenario], FitResult]
) -> None:
    plan = gates("train", 1, 2)  # when 4 and 8 steps have been applied
    with FitJob(tmp_path, accumulated_over_4_steps, "--num_workers=3", plan=plan) as job:
        rounds = revoke_and_grant(job)
        assert [e["step"] for e in rounds] == [0, 5, 9]  # with 1 step that is not applied
        job.finish_with(rounds[-1]["members"], fit_alone(accumulated_over_4_steps))


@pytest.mark.slow
def test_a_loop_that_accumulates_4_steps_ends_with_the_weights_of_one_process(
    tmp_path: Path,
) -> None:
    log = tmp_path / "alone.log"
    warm_python.run(SCRIPT, tmp_path / "alone", "1", "accumulate", log=log)
    expected = dict(np.load(tmp_path / "alone" / "weights.npz"))
    plan = gates("loop", 9, 17)
    with LoopJob(tmp_path, "--num_workers=3", mode="accumulate", plan=plan) as job:
        rounds = revoke_and_grant(job)
        assert [e["step"] for e in rounds] == [0, 10, 18]  # with 2 steps not applied
        assert_same_weights(job.final(), expected)
