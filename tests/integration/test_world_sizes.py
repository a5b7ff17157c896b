"""The result does not depend on the number of workers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.harness.job import Job, assert_same_weights


@pytest.mark.slow(but=("3",))
@pytest.mark.parametrize("num_workers", [1, 2, 3, 4])
def test_ends_with_the_weights_of_one_process(
    num_workers: int, tmp_path: Path, expected_weights: dict[str, np.ndarray]
) -> None:
    with Job(tmp_path, f"--num_workers={num_workers}") as job:
        job.finish()
        assert [e["world_size"] for e in job.events("round_running")] == [num_workers]
        assert_same_weights(job.weights(), expected_weights)
