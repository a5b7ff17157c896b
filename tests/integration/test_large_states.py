"""A joiner gets a state of more than 50 MB over sockets, while its root is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness import alone
from tests.harness.faults import Fault
from tests.harness.job import REPOSITORY, Job, assert_same_weights, read_weights

MODEL = REPOSITORY / "tests" / "harness" / "large_model.py"
COMMAND = (
    f"--model={MODEL}",
    *("--global_batch_size=64", "--micro_batch_size=16", "--epochs=1"),
)
"""8 steps, of which the last one is smaller."""
LIMIT_S = 100


@pytest.mark.slow
def test_a_root_that_is_killed_in_the_middle_of_a_joiners_way_to_the_state_changes_nothing(
    tmp_path: Path,
) -> None:
    plan = [
        Fault("gate", "train", 0, step=3, action="wait"),
        Fault("kill", "give", 0, size=3),
    ]
    with Job(tmp_path, "--num_workers=2", "--max_restarts=0", plan=plan, command=COMMAND) as job:
        job.wait_for_fault("gate")
        job.ctl("add", "1")
        job.wait_for("worker_ready", lambda e: e["worker_id"] == "w2")
        job.plan.open_gate("gate")
        job.finish()
        assert job.plan.happened("kill"), job.report()
        rounds = job.events("round_running")
        # The other worker that holds the state gives all of it.
        assert [r["members"] for r in rounds] == [["w0", "w1"], ["w1", "w2"]]
        assert all(r["steps_lost"] == 0 for r in rounds)
    undisturbed = tmp_path / "alone"
    alone.train(MODEL, undisturbed, micro_batch_size=16, epochs=1)
    expected = read_weights(undisturbed / "model.keras", tmp_path)
    # A step changes a weight by about 1e-5.
    assert_same_weights(job.weights(), expected, tolerance=1e-7)
