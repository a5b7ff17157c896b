"""Sums of numbers sent in 16 bits: how often they are rounded; the same on all workers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from hvd_elastic_keras.step.partition.horovod_collectives import HALF_DTYPES
from tests.harness.half_sums_script import numbers_of
from tests.harness.job import REPOSITORY, Job

SCRIPT = REPOSITORY / "tests" / "harness" / "half_sums_script.py"


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_two_workers_round_once_and_more_of_them_round_the_sum_too(
    workers: int, tmp_path: Path
) -> None:
    with Job(tmp_path, f"--num_workers={workers}", command=(str(SCRIPT), str(tmp_path))) as job:
        job.finish()
    for name, half in HALF_DTYPES.items():

        def rounded(numbers: np.ndarray, half: tf.DType = half) -> np.ndarray:
            return np.asarray(tf.cast(tf.cast(numbers, half), tf.float32))

        sent = [np.concatenate([np.ravel(n) for n in numbers_of(r)]) for r in range(workers)]
        exact = np.sum([rounded(numbers) for numbers in sent], 0, np.float32)
        assert np.any(rounded(exact) != exact)
        expected = exact if workers == 2 else rounded(exact)
        for rank in range(workers):
            with np.load(tmp_path / f"{rank}.npz") as found:
                np.testing.assert_array_equal(found[name], expected)
