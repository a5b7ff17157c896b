"""Sums over the nodes of several workers have the tree's bits, however the leaves are divided."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.harness.job import REPOSITORY, Job
from tests.harness.node_exchange_script import SIZES, WAYS, leaves_of
from tests.unit.step.test_tree_sum import expected_sum

SCRIPT = REPOSITORY / "tests" / "harness" / "node_exchange_script.py"
TREES = [[2, 2, 1], [5, 0, 0], [0, 0, 1], [1, 0, 1], [0, 1, 6], [4, 2, 2], [3, 11, 5]]


@pytest.mark.slow
def test_uneven_shares_and_vectors_shorter_than_the_workers_have_the_bits_of_the_tree(
    tmp_path: Path,
) -> None:
    command = (str(SCRIPT), str(tmp_path), json.dumps(TREES))
    with Job(tmp_path, "--num_workers=3", command=command) as job:
        job.finish()
    found = [np.load(tmp_path / f"{rank}.npz") for rank in range(3)]
    assert len(found[0].files) == len(WAYS) * len(SIZES) * len(TREES)
    for name in found[0].files:
        _, size, number = name.split("/")
        shares = TREES[int(number)]
        leaves = leaves_of(int(size), sum(shares))
        expected = [*expected_sum(leaves), np.float32(sum(shares)), np.float32(len(shares))]
        for of_worker in found:
            assert of_worker[name].tobytes() == np.array(expected, np.float32).tobytes(), name
