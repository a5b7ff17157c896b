"""A joiner gets its state of 35 MB while the others compute: they do not wait."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.harness import alone, warm_python
from tests.harness.alone import Once
from tests.harness.faults import Fault
from tests.harness.job import REPOSITORY, Job, assert_same_weights, read_weights

MODEL = REPOSITORY / "tests" / "harness" / "late_model.py"
COMMAND = (
    f"--model={MODEL}",
    *("--global_batch_size=64", "--micro_batch_size=16", "--epochs=2"),
)
"""8 steps in an epoch, of which the last one is smaller."""
CHECKED = (*COMMAND, "--check_weights_every_n_steps=1")
"""All workers wait for all in every step. A worker with other weights than the others ends."""
GATE = Fault("gate", "train", 0, step=3, action="wait")
"""Holds rank 0 until the joiner is ready. The joiner is then in the round of step 4."""
STATE_ON_ITS_WAY = Fault("held", "take", 2, action="wait")
"""Holds back the joiner's state."""
CAME_LATE = re.compile(r"the state came [0-9.]+ s after the others' step")
LIMIT_S = 100
TOLERANCE = 2e-6
"""A step changes a weight by about 1e-4."""
Weights = Mapping[str, np.ndarray]


@pytest.fixture(scope="module")
def expected(once: Once, tmp_path_factory: pytest.TempPathFactory) -> Weights:
    """Returns the weights of a run in one process."""

    def train(directory: Path) -> None:
        alone.train(MODEL, directory / "alone", micro_batch_size=16, epochs=2)

    model = once("late_model", train) / "alone" / "model.keras"
    return read_weights(model, tmp_path_factory.mktemp("weights"))


def let_join(job: Job) -> None:
    """Lets w2 join w0 and w1 before step 4."""
    job.wait_for_fault("gate")
    job.ctl("add", "1")
    job.wait_for("worker_ready", lambda e: e["worker_id"] == "w2")
    job.wait_for("round_opened", lambda e: e["reason"] == "w2 joins")
    job.plan.open_gate("gate")


def finish_like(job: Job, expected: Weights) -> None:
    job.finish()
    assert all(e["steps_lost"] == 0 for e in job.events("round_running"))
    assert_same_weights(job.weights(), expected, tolerance=TOLERANCE)


def log_of(job: Job, worker: str) -> str:
    return (job.job_dir / "logs" / f"{worker}.log").read_text()


def test_the_others_take_their_step_while_the_state_is_on_its_way(
    tmp_path: Path, expected: Weights
) -> None:
    plan = [GATE, STATE_ON_ITS_WAY, Fault("next", "train", 0, step=5, action="wait")]
    with Job(tmp_path, "--num_workers=2", plan=plan, command=COMMAND) as job:
        let_join(job)
        job.wait_for_fault("held")
        job.wait_for_fault("next")  # step 4 is taken, and the joiner has no state
        assert not CAME_LATE.search(log_of(job, "w2"))
        job.plan.open_gate("held")
        job.plan.open_gate("next")
        finish_like(job, expected)
        assert CAME_LATE.search(log_of(job, "w2"))
        assert [r["members"] for r in job.events("round_running")] == [
            ["w0", "w1"],
            ["w0", "w1", "w2"],
        ]


def test_a_joiner_has_the_weights_of_the_others_from_its_first_step_on(
    tmp_path: Path, expected: Weights
) -> None:
    command = (*CHECKED, "--audit")
    with Job(tmp_path, "--num_workers=2", plan=[GATE], command=command) as job:
        let_join(job)
        finish_like(job, expected)
        assert [e["exact"] for e in job.events("epoch_audited")] == [True, True]
        assert CAME_LATE.search(log_of(job, "w2"))
        assert "warning" not in job.output.replace("warning: batch norm", "")


@pytest.mark.slow
def test_with_deterministic_the_bits_are_those_of_a_job_that_nobody_joins(tmp_path: Path) -> None:
    command = (*CHECKED, "--deterministic")
    with Job(tmp_path / "joined", "--num_workers=2", plan=[GATE], command=command) as joined:
        let_join(joined)
        joined.finish()
        assert CAME_LATE.search(log_of(joined, "w2"))
    with Job(tmp_path / "calm", "--num_workers=2", command=command) as calm:
        calm.finish()
    assert_same_weights(joined.weights(), calm.weights(), tolerance=0.0)


@pytest.mark.slow(but=("in its step",))
@pytest.mark.parametrize("after_step", [False, True], ids=["in its step", "after its step"])
def test_a_holder_that_is_killed_on_the_way_changes_nothing(
    tmp_path: Path, expected: Weights, after_step: bool
) -> None:
    """The joiner has no state yet. It gets the state from the holder that is left."""
    kill = Fault("kill", "train", 0, step=5) if after_step else Fault("kill", "give", 0, size=3)
    held = [STATE_ON_ITS_WAY] if after_step else []
    flags = ("--num_workers=2", "--max_restarts=0")
    with Job(tmp_path, *flags, plan=[GATE, kill, *held], command=COMMAND) as job:
        let_join(job)
        job.wait_for_fault("kill")
        # The round may have been opened before, because the others noticed the failed collective.
        job.wait_for("worker_exited", lambda e: e["worker_id"] == "w0")
        if held:
            job.plan.open_gate("held")
        finish_like(job, expected)
        assert job.events("round_running")[-1]["members"] == ["w1", "w2"]


def test_a_joiner_that_is_killed_on_the_way_changes_nothing(
    tmp_path: Path, expected: Weights
) -> None:
    kill = Fault("kill", "take", 2)
    flags = ("--num_workers=2", "--max_restarts=0")
    with Job(tmp_path, *flags, plan=[GATE, kill], command=CHECKED) as job:
        let_join(job)
        job.wait_for_fault("kill")
        finish_like(job, expected)
        assert job.events("round_running")[-1]["members"] == ["w0", "w1"]


def test_a_joiner_that_alone_is_left_begins_again_from_what_is_on_disk(
    tmp_path: Path, expected: Weights
) -> None:
    """The joiner has the others' position in the data, but not their variables."""
    plan = [
        GATE,
        STATE_ON_ITS_WAY,
        Fault("first", "train", 0, step=5),
        Fault("second", "train", 1, step=5),
    ]
    flags = ("--num_workers=2", "--max_restarts=0")
    with Job(tmp_path, *flags, plan=plan, command=COMMAND) as job:
        let_join(job)
        job.wait_for_fault("first")
        job.wait_for_fault("second")
        job.plan.open_gate("held")
        job.finish()
        assert job.events("round_running")[-1]["members"] == ["w2"]
        assert_same_weights(job.weights(), expected, tolerance=TOLERANCE)


def test_a_fit_of_a_users_script_gives_what_plain_fit_gives_on_every_worker(
    tmp_path: Path,
) -> None:
    script = (str(REPOSITORY / "tests" / "harness" / "late_fit_script.py"), str(tmp_path))
    warm_python.run("-m", "tests.harness.late_fit_script", tmp_path, log=tmp_path / "alone.log")
    with Job(tmp_path, "--num_workers=2", plan=[GATE, STATE_ON_ITS_WAY], command=script) as job:
        let_join(job)
        job.wait_for_fault("held")
        # After step 4, all workers compare the batches that they have read. So step 5 is not taken.
        job.wait(lambda: re.search(r"^w0 .* 5 ", job.ctl("status"), re.M), "step 4 is taken")
        job.plan.open_gate("held")
        job.finish()
        assert len(job.events("round_running")) == 2
    with np.load(tmp_path / "alone.npz") as plain:
        for worker in ("w0", "w1", "w2"):
            with np.load(tmp_path / f"{worker}.npz") as found:
                assert set(found) == set(plain)
                for name in plain:
                    np.testing.assert_allclose(found[name], plain[name], 1e-5, 1e-6, err_msg=name)
