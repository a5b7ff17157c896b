"""Partitioned steps of real workers, with collectives in loops and branches too."""

from __future__ import annotations

import json
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from tests.harness.job import REPOSITORY, Job
from tests.harness.lockstep import assert_close
from tests.harness.partitioned_models import MODELS
from tests.harness.partitioned_script import captured_of

SCRIPT = REPOSITORY / "tests" / "harness" / "partitioned_script.py"
STEPS = [[5, 4, 3], [1, 0, 11]]
NAMES = (
    "a condition round apply, and a learning rate that the step sets",
    "accumulation, dropout, EMA",
    "a contrastive loss",
    "batch norm",
    "two large tables, one looked up twice",
)


def test_three_workers_with_uneven_shares_come_to_what_one_comes_to(tmp_path: Path) -> None:
    command = (str(SCRIPT), str(tmp_path), json.dumps(STEPS), *NAMES)
    with Job(tmp_path, "--num_workers=3", command=command) as job:
        job.finish()
    found = [np.load(tmp_path / f"{rank}.npz") for rank in range(3)]
    for name in NAMES:
        keras.utils.set_random_seed(1)
        made = MODELS[name]()
        captured = captured_of(made)
        plain = tf.function(made[0].train_step, autograph=False)
        for _ in STEPS:
            plain(tuple(map(tf.constant, made[1])))
        for i, value in enumerate(captured.variables.values()):
            for of_worker in found:
                what = f"{value.name} of {name}"
                assert_close(of_worker[f"{name}/{i}"], value.numpy(), what, 1e-4, 1e-2)
