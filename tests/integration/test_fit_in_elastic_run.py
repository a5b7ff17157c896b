"""`fit` inside of a function of `elastic.run`: real processes, a kill and a join while it runs."""

from __future__ import annotations

import dataclasses
import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.harness import warm_python
from tests.harness.faults import Fault
from tests.harness.job import REPOSITORY, Job, assert_same_weights

HOROVOD_SCRIPT = REPOSITORY / "tests" / "harness" / "horovod_fit_script.py"
SCRIPT = REPOSITORY / "tests" / "harness" / "fit_inside_script.py"
GATE = Fault("gate", "train", 0, step=11, action="wait")
KILL = Fault("kill", "train", 1, step=18, size=3)
STEPS, EPOCHS = 24, 3


@dataclasses.dataclass(frozen=True)
class Result:
    """The results that a process leaves at the end of the script."""

    weights: dict[str, np.ndarray]
    facts: dict[str, Any]

    @classmethod
    def read(cls, directory: Path, worker: str) -> Result:
        with np.load(directory / f"{worker}.npz") as file:
            weights = dict(file)
        return cls(weights, json.loads((directory / f"{worker}.json").read_text()))


def alone(directory: Path, mode: str) -> Result:
    """Returns the result without a launcher."""
    warm_python.run(SCRIPT, directory / "alone", mode, log=directory / "alone.log")
    return Result.read(directory / "alone", "alone")


def finish_with_a_join_and_a_kill(job: Job) -> list[str]:
    """Lets w2 join at the gate; returns the workers at the end."""
    job.wait_for_fault("gate")
    job.ctl("add", "1")
    job.wait_for("round_opened", lambda e: e["reason"] == "w2 joins")
    job.plan.open_gate("gate")
    job.finish()
    assert job.plan.happened("kill")
    rounds = job.events("round_running")
    assert [e["world_size"] for e in rounds] == [2, 3, 2]
    assert all(e["steps_lost"] == 0 for e in rounds)
    members: list[str] = rounds[-1]["members"]
    return members


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["dataset", "epochs"])
def test_a_join_and_a_kill_while_it_fits_change_no_weight_and_lose_no_step(
    mode: str, tmp_path: Path
) -> None:
    expected = alone(tmp_path, mode)
    results = tmp_path / "results"
    command = (str(SCRIPT), str(results), mode)
    flags = ("--num_workers=2", "--max_restarts=0")
    with Job(tmp_path, *flags, command=command, plan=[GATE, KILL]) as job:
        survivors = finish_with_a_join_and_a_kill(job)
    assert sorted(p.stem for p in results.glob("*.npz")) == sorted(survivors)
    for worker in survivors:
        found = Result.read(results, worker)
        assert_same_weights(found.weights, expected.weights)
        # Values that callbacks set in the state, and the callbacks' own state, reached all workers.
        assert found.facts["seen"] == expected.facts["seen"]
        assert found.facts["result"]["steps"] == expected.facts["result"]["steps"] == STEPS
        assert found.facts["result"]["epochs"] == expected.facts["result"]["epochs"]
        np.testing.assert_allclose(
            found.facts["result"]["losses"], expected.facts["result"]["losses"], rtol=1e-5
        )
        assert found.facts["rounds"] == 3
        assert found.facts["sizes"] == ([3, 2] if worker == "w2" else [2, 3, 2])
    rows = (results / "log.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == [
        "epoch",
        *map(str, expected.facts["result"]["epochs"]),
    ]


@pytest.mark.slow
def test_a_job_that_is_stopped_in_the_middle_of_such_a_fit_goes_on_from_there(
    tmp_path: Path,
) -> None:
    expected = alone(tmp_path, "dataset")
    results = tmp_path / "results"
    command = (str(SCRIPT), str(results), "dataset")
    with Job(tmp_path, "--num_workers=2", command=command, plan=[GATE]) as job:
        job.wait_for_fault("gate")
        job.process.send_signal(signal.SIGINT)
        job.wait_for("job_stopping")
        job.plan.open_gate("gate")
        job.finish(exit_code=130)
    assert not list(results.glob("*.npz"))
    with Job(tmp_path, "--num_workers=1", command=command) as job:
        job.finish()
        (loaded,) = job.events("checkpoint_loaded")
        assert loaded["step"] > 0
    (path,) = results.glob("*.npz")
    found = Result.read(results, path.stem)
    assert_same_weights(found.weights, expected.weights)
    assert found.facts["result"] == {
        "steps": STEPS,
        "epochs": [0, 1, 2],
        "losses": pytest.approx(expected.facts["result"]["losses"], rel=1e-5),
    }
    assert (found.facts["seen"], found.facts["rounds"]) == ([0, 1, 2], 2)


def test_a_keras_script_of_elastic_horovod_gives_horovods_numbers_through_a_join_and_a_kill(
    tmp_path: Path,
) -> None:
    warm_python.run(HOROVOD_SCRIPT, tmp_path / "plain", "plain", log=tmp_path / "plain.log")
    results = tmp_path / "results"
    # With 2 workers an epoch takes 6 steps. Join and kill happen in the second epoch.
    plan = [
        Fault("gate", "train", 0, step=7, action="wait"),
        Fault("kill", "train", 1, step=9, size=3),
    ]
    flags = ("--num_workers=2", "--max_restarts=0")
    with Job(tmp_path, *flags, command=(str(HOROVOD_SCRIPT), str(results)), plan=plan) as job:
        survivors = finish_with_a_join_and_a_kill(job)
        # Each difference to Horovod is said once.
        assert job.output.count("each worker takes the batch that fit is given") == 1
        assert "up to reset callbacks" in job.output
    first, second = (Result.read(results, worker) for worker in survivors)
    assert_same_weights(first.weights, second.weights)
    assert first.facts == second.facts
    facts = first.facts
    (plain_loss,) = json.loads((tmp_path / "plain" / "plain.json").read_text())
    assert facts["losses"][0] == pytest.approx(plain_loss, rel=1e-5)
    assert (facts["epochs"], facts["size"]) == ([0, 1, 2], 2)
    assert facts["rate"] == pytest.approx(2 * 0.02)
    # The second epoch has 2 steps of 2 batches, and 1 step of 3. They leave 5 batches, for 3 steps
    # of 2.
    assert facts["steps"] == 6 + (2 + 1 + 3) + 6
    assert (facts["state"]["epoch"], facts["state"]["batch"]) == (3, 0)
    assert facts["state"]["rendezvous"] == 3
    assert facts["state"]["commits"] > 3
    assert len(list(results.glob("checkpoint-*.keras"))) == 3
