"""Each step of a job with kills, joins and a restart equals one process's step up to rounding."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_elastic_keras import Trainer, TrainingConfig
from hvd_elastic_keras.api.model_module import ModelModule
from tests.harness import recorded_steps
from tests.harness.faults import Fault
from tests.harness.job import REPOSITORY, SMALL, Job

MODEL = REPOSITORY / "tests" / "harness" / "recorded_model.py"
STEPS = 24
ROUNDING = 2e-5
"""Relative to a step's change. Float32 has 6e-8, but Adam divides by roots of small numbers."""


def job_of(tmp_path: Path, *flags: str, plan: list[Fault]) -> Job:
    return Job(tmp_path, *flags, plan=plan, command=(f"--model={MODEL}", *SMALL))


@pytest.mark.slow
def test_from_its_state_before_it_each_step_is_that_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "record"
    record.mkdir()
    monkeypatch.setenv(recorded_steps.DIRECTORY, str(record))
    join = Fault("join", "train", 0, step=5, action="wait")
    kill = Fault("kill", "train", 0, step=9, size=3)
    stop = Fault("stop", "train", 0, step=12, action="wait")
    with job_of(tmp_path, "--num_workers=2", "--max_restarts=0", plan=[join, kill, stop]) as job:
        job.wait_for_fault("join")
        job.ctl("add", "1")
        job.wait_for("round_opened", lambda e: e["reason"] == "w2 joins")
        job.plan.open_gate("join")
        job.wait_for_fault("stop")
        job.process.terminate()
        job.wait_for("job_stopping")
        job.plan.open_gate("stop")
        job.finish(exit_code=143)
        assert job.plan.happened("kill")
        assert [e["world_size"] for e in job.events("round_running")] == [2, 3, 2]
    kill = Fault("kill", "train", 1, step=17)
    with job_of(tmp_path, "--num_workers=3", "--max_restarts=0", plan=[kill]) as job:
        job.finish()
        assert "checkpoint" in job.output

    module = ModelModule(str(MODEL), config=None, seed=0, data_dir="")
    config = TrainingConfig(global_batch_size=64, micro_batch_size=8, epochs=3)
    trainer = Trainer(module.model(), module.dataset("train"), config=config)
    found = recorded_steps.replay(trainer, record)
    assert [d.step for d in found] == list(range(STEPS))
    assert max(d.largest for d in found) < ROUNDING, found
    assert any(d.largest > 0 for d in found), "nothing was computed anew"
