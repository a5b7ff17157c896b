"""Gradients sent smaller or earlier: workers stay equal to each other, also through kills."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.harness.faults import Fault
from tests.harness.job import REPOSITORY, SMALL, Job, assert_same_weights

Weights = dict[str, np.ndarray]
MODEL = REPOSITORY / "tests" / "harness" / "parts_model.py"
STEPS = 24
LEARNING_RATE = 0.05
MOMENTUM = 0.9
LARGEST_GRADIENT = 2.0
"""Limit of the sum of absolute values that all workers add to one gradient of `fault_model.py`."""
ROUNDING = 2.0**-11
"""The largest relative change of a number that is rounded to fp16."""
AMPLIFICATION = 2.0
"""The largest factor by which later steps may amplify a small difference."""


def farthest(found: Weights, expected: Weights) -> float:
    assert found.keys() == expected.keys()
    return max(float(np.max(np.abs(found[name] - expected[name]))) for name in expected)


def job_of(tmp_path: Path, fault: Fault, *flags: str) -> Job:
    """Returns a job with gradients in parts.

    After every step it checks that all workers have the same bits.
    """
    given = ("--num_workers=3", "--max_restarts=0", "--check_weights_every_n_steps=1", *flags)
    return Job(tmp_path, *given, plan=[fault], command=(f"--model={MODEL}", *SMALL))


def finish(job: Job) -> None:
    job.finish()
    assert job.plan.happened("kill")
    assert [e["world_size"] for e in job.events("round_running")] == [3, 2]
    assert [e["steps_lost"] for e in job.events("round_running")] == [0, 0]
    assert "other weights" not in job.output


def test_gradients_in_parts_lead_to_the_same_weights_through_a_kill(
    tmp_path: Path, expected_weights: Weights
) -> None:
    with job_of(tmp_path, Fault("kill", "train", 0, step=5)) as job:
        finish(job)
        assert_same_weights(job.weights(), expected_weights)


@pytest.mark.slow
def test_compressed_gradients_lead_all_workers_to_the_same_weights_near_the_others(
    tmp_path: Path, expected_weights: Weights
) -> None:
    with job_of(tmp_path, Fault("kill", "train", 1, step=5), "--compression=fp16") as job:
        finish(job)
        # Values are rounded before and after they are added. Momentum sums up the steps.
        step = LEARNING_RATE / (1 - MOMENTUM) * 2 * ROUNDING * LARGEST_GRADIENT
        distance = farthest(job.weights(), expected_weights)
        assert 1e-5 < distance < AMPLIFICATION * STEPS * step
