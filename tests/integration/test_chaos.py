"""Faults from outside, on a job that does not expect them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hvd_elastic_keras import Trainer, TrainingConfig
from hvd_elastic_keras.api.model_module import ModelModule
from tests.harness.faults import Fault
from tests.harness.job import LIMIT_S, REPOSITORY, Job, assert_same_weights, read_weights

MODEL = REPOSITORY / "scripts" / "benchmarks" / "soak_model.py"
EPOCHS = 8
"""Epochs of 15 steps."""
FLAGS = (f"--model={MODEL}", "--global_batch_size=64", "--micro_batch_size=8", f"--epochs={EPOCHS}")
SHORT = ("waiting", "entering", "syncing", "evaluating", "checkpointing")
"""Phases that last milliseconds."""
PLAN = {
    "faults": [
        {"kind": "kill", "rank": 0, "step": 20},
        {"kind": "slow", "rank": -1, "step": 30, "duration_s": 0.5},
        {"kind": "suspend", "rank": 0, "step": 50, "duration_s": 60, "min_members": 2},
        {"kind": "kill", "worker": "w99"},
        *({"kind": "slow", "phase": phase, "duration_s": 0.1} for phase in SHORT),
    ]
}


def break_job(job: Job, plan: dict[str, Any], report: Path) -> subprocess.CompletedProcess[str]:
    file = job.job_dir.parent / "plan.json"
    file.write_text(json.dumps(plan))
    flags = [f"--job_dir={job.job_dir}", f"--plan={file}", f"--report={report}"]
    return subprocess.run(
        [sys.executable, "-m", "hvd_elastic_keras.chaos", *flags],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_a_job_that_is_broken_from_outside_ends_with_the_weights_of_an_undisturbed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOAK_STEP_S", "0.03")
    flags = ("--num_workers=3", "--max_restarts=0", "--heartbeat_timeout_s=6", "--audit")
    with Job(tmp_path, *flags, command=FLAGS) as job:
        job.wait_for_round(3)
        result = break_job(job, PLAN, tmp_path / "report.json")
        job.finish()
        audit = job.ctl("audit").splitlines()
        weights = job.weights()
        spent = job.events("job_finished")[0]["spent_s"]
        lost = sum(e["steps_lost"] for e in job.events("round_running"))
    assert result.returncode == 1, result.stdout + result.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    kill, slow, suspend, nobody, *short = report["outcomes"]
    assert report["ended"] == "the job had ended"
    assert nobody["fired"] is None
    assert nobody["why_not"] == "there was no worker w99 when the job had ended"
    assert slow["cost"]["told"] == "no worker was lost"
    assert [o["why_not"] for o in short if o["fired"] is None] == []
    assert not (job.job_dir / "chaos").exists()
    for outcome in (kill, suspend):
        cost, running = outcome["cost"], rounds_of(job, outcome)
        assert outcome["fired"]["worker_id"] not in running["members"]
        assert cost["stall_s"] == running["stall_s"]
        parts = cost["noticed_s"] + cost["entered_s"] + cost["synced_s"]
        assert parts == pytest.approx(cost["stall_s"], abs=0.005)
    assert kill["fired"]["step"] >= 20
    # The suspended worker's time limit, minus the time already passed since its last heartbeat.
    assert suspend["cost"]["detected_s"] > 2
    assert suspend["cost"]["stall_s"] > 2
    assert len(audit) == EPOCHS
    assert all(line.endswith("every example exactly once") for line in audit)
    assert lost == 0
    assert spent["detecting"] > 2
    monkeypatch.delenv("SOAK_STEP_S")
    assert_same_weights(weights, undisturbed(tmp_path / "alone"))


@pytest.mark.slow
def test_a_full_disk_costs_checkpoints_and_nothing_else(
    tmp_path: Path, expected_weights: dict[str, np.ndarray]
) -> None:
    # On the full disk, rank 0 could not leave a mark at the second gate.
    at = {"2": (0, 2), "16": (1, 16)}
    gates = [Fault(name, "train", *where, action="wait") for name, where in at.items()]
    flags = ("--num_workers=2", "--checkpoint_every_n_steps=4")
    plan = {"faults": [{"kind": "disk_full", "rank": 0, "duration_s": 600}]}
    with Job(tmp_path, *flags, plan=gates) as job:
        job.wait_for_fault("2")
        with chaos(job, plan) as breaking:
            assert breaking.stdout is not None
            assert breaking.stdout.readline().startswith("1 of 1: disk_full w0 at step")
            job.plan.open_gate("2")
            job.wait_for_fault("16")
            job.wait(lambda: "could not be written" in job.output or None, "a warning")
            assert job.events("checkpoint_saved") == []
            breaking.terminate()
            told = breaking.communicate(timeout=LIMIT_S)[0]
            assert breaking.returncode == 130
        assert "no worker was lost" in told
        job.plan.open_gate("16")
        job.finish()
        assert job.events("checkpoint_saved")[-1]["step"] >= 20
        assert not any(e["failed"] for e in job.events("worker_exited"))
        assert_same_weights(job.weights(), expected_weights)


@contextlib.contextmanager
def chaos(job: Job, plan: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """Breaks a job. The process is killed at the end of the block."""
    file = job.job_dir.parent / "plan.json"
    file.write_text(json.dumps(plan))
    command = ["-m", "hvd_elastic_keras.chaos", f"--job_dir={job.job_dir}", f"--plan={file}"]
    with subprocess.Popen(
        [sys.executable, *command],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def rounds_of(job: Job, outcome: dict[str, Any]) -> dict[str, Any]:
    number = outcome["cost"]["round"]
    return next(e for e in job.events("round_running") if e["round"] == number)


def undisturbed(job_dir: Path) -> dict[str, Any]:
    module = ModelModule(str(MODEL), config=None, seed=0, data_dir="")
    config = TrainingConfig(global_batch_size=64, micro_batch_size=8, epochs=EPOCHS)
    Trainer(
        module.model(),
        module.dataset("train"),
        validation=module.dataset("validation"),
        config=config,
        job_dir=job_dir,
    ).fit()
    return read_weights(job_dir / "model.keras", job_dir)
