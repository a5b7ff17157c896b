"""`--batch=per_worker`: batch and learning rate grow and shrink with the workers.

The weights are compared with a NumPy computation (`tests/harness/growing.py`) of the same batches.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.harness import growing
from tests.harness.faults import Fault
from tests.harness.job import REPOSITORY, Job, assert_same_weights

MODEL = str(REPOSITORY / "tests" / "harness" / "growing_model.py")
SCRIPT = str(REPOSITORY / "tests" / "harness" / "growing_fit_script.py")
GROWING = (
    f"--model={MODEL}",
    *("--batch=per_worker", "--global_batch_size=24", "--batch_size_per_worker=8"),
    *("--micro_batch_size=4", "--lr_warm_up_steps=5", "--epochs=4", "--max_restarts=0"),
)
"""The global batch of 24 examples is the batch of three workers."""


def weights_of(job: Job) -> list[np.ndarray]:
    """Returns kernel and bias at the end."""
    found = job.weights()
    return [found["layers/dense/vars/0"], found["layers/dense/vars/1"]]


def gate(name: str, step: int) -> Fault:
    return Fault(name, "train", 0, step=step, action="wait")


def test_a_revocation_a_kill_and_joins_in_the_middle_of_epochs(tmp_path: Path) -> None:
    plan = [gate("first", 4), Fault("kill", "train", 1, step=9, size=2), gate("second", 14)]
    with Job(tmp_path, "--num_workers=3", "--audit", plan=plan, command=GROWING) as job:
        job.wait_for_fault("first")
        job.ctl("revoke", "--slots=1")
        job.plan.open_gate("first")
        job.wait_for_fault("second")
        assert job.plan.happened("kill")
        job.ctl("add", "2")
        job.wait_for("round_opened", lambda e: e["reason"] == "w3, w4 join")
        job.plan.open_gate("second")
        job.finish()
        sizes = growing.assert_trained_as_expected(
            job, weights_of(job), per_worker=8, reference=3, warm_up=5
        )
        assert sizes == [3] * 5 + [2] * 4 + [1] * 6 + [3] * 25
        rounds = job.events("round_running")
        assert [e["micro_batches"] for e in rounds] == [[2, 2, 2], [2, 2], [2], [2, 2, 2]]
        assert all(e["steps_lost"] == 0 for e in rounds)
        job.assert_audited(epochs=len(job.events("epoch_end")))
        told = [line for line in job.output.splitlines() if line.startswith("batch ")]
        assert told == [
            "batch 24 = 3 workers x 8; learning rate x 1",
            "batch 16 = 2 workers x 8; learning rate x 0.6667",
            "batch 8 = 1 worker x 8; learning rate x 0.3333",
            "batch 24 = 3 workers x 8; learning rate x 1 after 5 steps of warm-up",
        ]
        changes = [(e["step"], e["workers"], e["batch_size"]) for e in job.events("batch_changed")]
        assert changes == [(0, 3, 24), (5, 2, 16), (9, 1, 8), (15, 3, 24)]
        history = json.loads((job.job_dir / "history.json").read_text())["history"]
        rates = [growing.RATE * growing.DECAY ** (n + 1) for n in range(4)]
        np.testing.assert_allclose(history["learning_rate"], rates, rtol=1e-6)


@pytest.mark.slow
def test_a_stopped_job_goes_on_in_the_middle_of_an_epoch_with_more_workers(tmp_path: Path) -> None:
    with Job(tmp_path, "--num_workers=1", plan=[gate("stop", 8)], command=GROWING) as job:
        job.wait_for_fault("stop")
        job.process.send_signal(signal.SIGTERM)
        job.wait_for("job_stopping")
        job.plan.open_gate("stop")
        job.finish(exit_code=143)
        stopped_at = job.events("job_finished")[0]["step"]
        assert stopped_at == 9
    specification = (job.job_dir / "job.json").read_text()
    for wrong, words in [
        ("--batch=global", "made with batch=per_worker, but now batch=global"),
        ("--batch_size_per_worker=16", "made with batch_size_per_worker=8, but now"),
    ]:
        flags = [flag for flag in GROWING if not flag.startswith(wrong.split("=")[0])]
        if wrong == "--batch=global":
            flags = [f"--model={MODEL}", "--global_batch_size=24", "--micro_batch_size=4"]
        assert words in refusal(f"--job_dir={job.job_dir}", *flags, wrong)
        # A refused command must not change this file. Otherwise the right command would be refused
        # too, where it leaves the size to the job.
        assert (job.job_dir / "job.json").read_text() == specification
        assert not list(job.job_dir.glob("job.*.json"))
    with Job(tmp_path, "--num_workers=3", command=GROWING) as job:
        job.finish()
        sizes = growing.assert_trained_as_expected(
            job, weights_of(job), per_worker=8, reference=3, warm_up=5
        )
        assert sizes[:10] == [1] * 9 + [3]
        assert "learning rate x 1 after 5 steps of warm-up" in job.output


def refusal(*flags: str) -> str:
    """Returns the error with which the command ends before it starts a worker."""
    command = [sys.executable, "-m", "hvd_elastic_keras.run", *flags]
    result = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 2, result.stdout + result.stderr
    return result.stderr


@pytest.mark.slow
def test_workers_without_a_part_in_validation_or_in_the_last_step_take_part(tmp_path: Path) -> None:
    """Three workers share 25 worker batches, and validation in batches of one micro-batch."""
    sizes_of_batches = ("--global_batch_size=8", "--micro_batch_size=8")
    flags = ("--num_workers=3", *sizes_of_batches, "--lr_scaling=sqrt")
    kill = Fault("kill", "evaluate", 0, step=9)
    with Job(tmp_path, *flags, plan=[kill], command=GROWING) as job:
        job.finish()
        assert job.plan.happened("kill")
        sizes = growing.sizes_by_step(job)
        assert sizes == [3] * 9 + [2] * 39
        batches = growing.batches_by_step(job, sizes)
        assert growing.assert_every_example_once_per_epoch(sizes, batches, per_worker=8) == 4
        assert len(batches[8]) == 8
        assert "learning rate x 1.732 after 5 steps of warm-up" in job.output
        assert "learning rate x 1.414" in job.output


@pytest.mark.slow
def test_with_the_workers_it_starts_with_a_job_trains_as_without_the_flag(
    tmp_path: Path, expected_weights: dict[str, np.ndarray]
) -> None:
    """Batch norm and dropout are included: micro-batches are cut and numbered the same."""
    with Job(tmp_path, "--num_workers=4", "--batch=per_worker") as job:
        job.finish()
        assert_same_weights(job.weights(), expected_weights)
        assert "batch 16 per worker = 2 micro-batches of 8; starting 4 workers" in job.output


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["arrays", "dataset", "PyDataset"])
def test_fit_with_a_join_and_a_kill_of_rank_0(kind: str, tmp_path: Path) -> None:
    plan = [gate("gate", 4), Fault("kill", "train", 0, step=8, size=3)]
    command = (SCRIPT, str(tmp_path), kind)
    flags = ("--num_workers=2", "--max_restarts=0", "--audit")
    with Job(tmp_path, *flags, plan=plan, command=command) as job:
        job.wait_for_fault("gate")
        job.ctl("add", "1")
        job.wait_for("round_opened", lambda e: e["reason"] == "w2 joins")
        job.plan.open_gate("gate")
        job.finish()
        job.assert_audited(epochs=len(job.events("epoch_end")))
        assert job.plan.happened("kill")
        results = [np.load(path) for path in sorted(tmp_path.glob("w*.npz"))]
        assert len(results) == 2
        for result in results:
            sizes = growing.assert_trained_as_expected(
                job, [result["kernel"], result["bias"]], per_worker=16, reference=1, warm_up=6
            )
            rates = [growing.RATE * growing.DECAY ** (n + 1) for n in range(4)]
            np.testing.assert_allclose(result["rates"], rates, rtol=1e-6)
        joined = sizes.index(3)
        assert 5 <= joined < 8  # the workers may be told one step later
        assert sizes[:8] == [2] * joined + [3] * (8 - joined)
        assert set(sizes[8:]) == {2}
        assert job.events("round_running")[0]["micro_batches"] == [4, 4]
        assert "batch 48 = 3 workers x 16; learning rate x 3 after 6 steps of warm-up" in job.output
