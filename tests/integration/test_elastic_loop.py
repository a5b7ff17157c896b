"""A user's own training loops with `elastic.run`: real processes, real faults."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.harness import warm_python
from tests.harness.alone import Once
from tests.harness.faults import Fault
from tests.harness.job import REPOSITORY, ColdJob, Job, assert_same_weights

SCRIPT = REPOSITORY / "tests" / "harness" / "elastic_script.py"
EXAMPLES = REPOSITORY / "docs" / "examples"
TWICE = """
import tensorflow as tf
import hvd_elastic_keras.horovod as hvd

hvd.init()
total = tf.Variable([0.0])

@hvd.elastic.run
def train(state):
    while state.step < state.steps:
        total.assign_add(hvd.allreduce(tf.ones([1]), op=hvd.Sum, name="ones"))
        state.step += 1
        state.commit()
    return hvd.size()

state = hvd.elastic.TensorFlowState([total], step=0, steps=3)
first = train(state)
state.steps = 5
print("sizes", first, train(state), "total", total.numpy())
"""
STEPS = 30
GATE = Fault("gate", "loop", 0, step=11, action="wait")
Weights = dict[str, np.ndarray]


class LoopJob(Job):
    """A job that runs `elastic_script.py`."""

    def __init__(
        self,
        directory: Path,
        *flags: str,
        commit_every: int = 1,
        mode: str = "graph",
        **options: Any,
    ) -> None:
        self.results = directory / "results"
        command = (str(SCRIPT), str(self.results), str(commit_every), mode)
        super().__init__(directory, *flags, command=command, **options)

    def trace(self, worker_id: str, what: str) -> list[dict[str, Any]]:
        """Returns the notes of one kind that a worker wrote."""
        lines = (self.results / f"trace-{self.pid_of(worker_id)}.jsonl").read_text().splitlines()
        return [entry for entry in map(json.loads, lines) if entry["what"] == what]

    def steps(self, worker_id: str) -> list[int]:
        """Returns the steps that a worker has finished, repeated ones included."""
        return [entry["step"] for entry in self.trace(worker_id, "step")]

    def final(self) -> Weights:
        """Returns weights, slots and counter at the end."""
        return dict(np.load(self.results / "weights.npz"))


@pytest.fixture(scope="session")
def expected(once: Once) -> Weights:
    """Returns the script's result alone."""

    def train(directory: Path) -> None:
        warm_python.run(SCRIPT, directory, "1", log=directory / "log")

    return dict(np.load(once("elastic_loop", train) / "weights.npz"))


def assert_no_error(job: Job) -> None:
    """Asserts that no worker failed, and that no log has an error."""
    assert [e for e in job.events("worker_exited") if e["failed"]] == []
    for log in (job.job_dir / "logs").glob("*.log"):
        assert not re.search(r"Traceback|^\S+ \S+ ERROR", log.read_text(), re.MULTILINE)


def test_a_script_alone_ends_with_every_step_counted(expected: Weights) -> None:
    assert expected["counter"] == STEPS


@pytest.mark.slow(but=("0",))
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_kill_repeats_only_the_steps_since_the_last_commit(
    rank: int, tmp_path: Path, expected: Weights
) -> None:
    kill = Fault("kill", "loop", rank, step=13, size=3)
    flags = ("--num_workers=3", "--max_restarts=0")
    with LoopJob(tmp_path, *flags, commit_every=5, plan=[kill]) as job:
        job.finish()
        assert job.plan.happened("kill")
        first, second = job.events("round_running")
        assert (first["world_size"], second["world_size"]) == (3, 2)
        survivors = second["members"]
        assert first["members"][rank] not in survivors
        for survivor in survivors:
            # Step 13 was running; the last commit was after step 9.
            assert job.steps(survivor) == [*range(13), *range(10, STEPS)]
            assert [e["size"] for e in job.trace(survivor, "reset")] == [3, 2]
        assert_same_weights(job.final(), expected)


def test_a_joiner_goes_on_from_the_values_of_the_others(tmp_path: Path, expected: Weights) -> None:
    with LoopJob(tmp_path, "--num_workers=2", commit_every=4, plan=[GATE]) as job:
        job.wait_for_fault("gate")
        job.ctl("add", "1")
        job.wait_for("round_opened", lambda e: e["reason"] == "w2 joins")
        job.plan.open_gate("gate")
        job.wait_for_round(3)
        job.finish()
        root = job.events("round_running")[0]["members"][0]
        assert [e["size"] for e in job.trace(root, "reset")] == [2, 3]
        assert [e["size"] for e in job.trace("w2", "reset")] == [3]
        (entered,) = job.trace("w2", "enter")
        assert (entered["epoch"], entered["sizes"], entered["best"]) == (1, [2], [11.0, 11.0])
        # Step 11 was not followed by a commit, but is not lost.
        assert entered["batch"] == 2
        assert job.steps("w2") == [*range(12, STEPS)]
        assert job.steps(root) == [*range(STEPS)]
        assert [e["result"] for e in job.trace("w2", "returned")] == ["trained"]
        assert_no_error(job)
        assert_same_weights(job.final(), expected)


def test_a_worker_that_gets_sigterm_leaves_and_nobody_sees_an_error(
    tmp_path: Path, expected: Weights
) -> None:
    with LoopJob(tmp_path, "--num_workers=3", plan=[GATE]) as job:
        job.wait_for_fault("gate")
        root, *others = job.wait_for_round(3)["members"]
        job.signal(root, signal.SIGTERM)
        job.wait_for("round_opened", lambda e: "SIGTERM" in e["reason"])
        job.plan.open_gate("gate")
        left = job.wait_for("worker_exited", lambda e: e["worker_id"] == root)
        assert left["cause"] == "left: SIGTERM"
        job.finish()
        assert job.trace(root, "returned") == []
        for other in others:
            assert job.steps(other) == [*range(STEPS)]
        assert_no_error(job)
        assert_same_weights(job.final(), expected)


def test_a_replacement_takes_over_the_state_and_works_without_any_graph(
    tmp_path: Path, expected: Weights
) -> None:
    kill = Fault("kill", "loop", 1, step=5, size=2)
    flags = ("--num_workers=2", "--min_workers=2")
    with LoopJob(tmp_path, *flags, mode="eager", plan=[kill]) as job:
        job.finish()
        assert job.plan.happened("kill")
        assert job.steps("w2") == [*range(5, STEPS)]
        assert_same_weights(job.final(), expected)


def test_a_root_that_is_killed_in_the_middle_of_a_sync_loses_nothing(
    tmp_path: Path, expected: Weights
) -> None:
    kill = Fault("kill", "sync", 0, round=2)
    flags = ("--num_workers=2", "--max_restarts=0")
    with LoopJob(tmp_path, *flags, commit_every=4, plan=[GATE, kill]) as job:
        job.wait_for_fault("gate")
        job.ctl("add", "1")
        job.wait_for("round_opened", lambda e: e["reason"] == "w2 joins")
        job.plan.open_gate("gate")
        job.finish()
        assert job.plan.happened("kill")
        other = job.events("round_running")[0]["members"][1]
        assert job.steps(other) == [*range(STEPS)]
        assert job.steps("w2") == [*range(12, STEPS)]
        assert_same_weights(job.final(), expected)


@pytest.mark.slow
def test_who_failed_when_others_had_finished_takes_their_state_and_returns(
    tmp_path: Path, expected: Weights
) -> None:
    failure = Fault("failure", "end", 1, action="SIGUSR1", size=2)
    with LoopJob(tmp_path, "--num_workers=2", commit_every=7, plan=[failure]) as job:
        job.finish()
        assert job.plan.happened("failure")
        finished, failed = job.events("round_running")[0]["members"]
        assert job.steps(failed) == [*range(STEPS)]  # the last commit was after step 27
        assert [e["result"] for e in job.trace(failed, "returned")] == [None]
        assert [e["result"] for e in job.trace(finished, "returned")] == ["trained"]
        assert job.trace(failed, "returned")[0]["counter"] == STEPS
        assert_same_weights(job.final(), expected)


@pytest.mark.slow
def test_a_kill_when_others_have_finished_is_no_matter(tmp_path: Path, expected: Weights) -> None:
    kill = Fault("kill", "end", 0, size=2)
    with LoopJob(tmp_path, "--num_workers=2", "--max_restarts=0", plan=[kill]) as job:
        job.finish()
        assert job.plan.happened("kill")
        (killed, other) = job.events("round_running")[0]["members"]
        assert job.trace(killed, "returned") == []
        (returned,) = job.trace(other, "returned")
        assert (returned["result"], returned["rank"], returned["size"]) == ("trained", 0, 1)
        assert job.steps(other) == [*range(STEPS)]
        assert_same_weights(job.final(), expected)


@pytest.mark.slow
def test_when_all_workers_are_killed_their_replacements_go_on_from_the_newest_checkpoint(
    tmp_path: Path, expected: Weights
) -> None:
    with LoopJob(tmp_path, "--num_workers=2", mode="durable", plan=[GATE]) as job:
        job.wait_for_fault("gate")
        job.wait_for("checkpoint_saved")
        # The launcher counts as lost only the steps that it has been told of.
        job.wait(lambda: "step 11" in job.ctl("status") or None, "a heartbeat after commit 11")
        for worker_id in ("w0", "w1"):
            job.signal(worker_id, signal.SIGKILL)
        job.finish()
        (loaded,) = job.events("checkpoint_loaded")
        commit = loaded["step"]
        assert 5 <= commit <= 11
        assert f"going on from the checkpoint of commit {commit}" in job.output
        rounds = job.events("round_running")
        assert (rounds[1]["step"], rounds[1]["steps_lost"]) == (commit, 11 - commit)
        for replacement in rounds[1]["members"]:
            assert job.trace(replacement, "enter")[0]["best"] == [commit - 1.0] * 2
            assert job.steps(replacement) == [*range(commit, STEPS)]
        assert_same_weights(job.final(), expected)


@pytest.mark.slow
def test_after_ctrl_c_the_job_goes_on_from_its_last_step_and_afterwards_it_is_finished(
    tmp_path: Path, expected: Weights
) -> None:
    with LoopJob(tmp_path, "--num_workers=2", plan=[GATE]) as job:
        job.wait_for_fault("gate")
        job.process.send_signal(signal.SIGINT)
        job.wait_for("job_stopping")
        job.plan.open_gate("gate")
        job.finish(exit_code=130)
        assert "to go on, start it again" in job.output
        assert job.steps("w0")[-1] == 11
    with LoopJob(tmp_path, "--num_workers=3") as job:
        job.finish()
        assert "going on from the checkpoint of commit 12" in job.output
        assert job.steps("w2") == [*range(12, STEPS)]
        assert [e["result"] for e in job.trace("w2", "returned")] == ["trained"]
        assert_same_weights(job.final(), expected)
    (job.results / "weights.npz").unlink()
    with LoopJob(tmp_path, "--num_workers=2") as job:
        job.finish()
        assert "its function is not called again" in job.output
        for worker_id in ("w5", "w6"):
            assert job.steps(worker_id) == []
            (returned,) = job.trace(worker_id, "returned")
            assert (returned["result"], returned["counter"]) == ("trained", STEPS)
        assert_same_weights(job.final(), expected)


@pytest.mark.slow
def test_a_script_may_train_twice_with_the_same_state(tmp_path: Path) -> None:
    script = tmp_path / "twice.py"
    script.write_text(TWICE)
    with Job(tmp_path, "--num_workers=2", "--all_output", command=(str(script),)) as job:
        job.finish()
        assert_no_error(job)
        for worker_id in ("w0", "w1"):
            assert f"[{worker_id}] sizes 2 2 total [10.]" in job.output
        told = [(e["training"], e["step"], e["unit"]) for e in job.events("steps_taken")]
        assert told[-1] == (2, 2, "commit"), "the newest one is always written"
        assert all(e["examples_per_s"] is None for e in job.events("steps_taken"))


@pytest.mark.slow(but=("tensorflow2_keras_mnist_elastic.py",))
@pytest.mark.parametrize(
    "name", ["tensorflow2_mnist_elastic.py", "tensorflow2_keras_mnist_elastic.py"]
)
def test_an_example_runs_with_two_workers_and_learns(name: str, tmp_path: Path) -> None:
    with ColdJob(tmp_path, "--num_workers=2", command=(str(EXAMPLES / name),)) as job:
        job.finish()
        assert job.events("round_running")[0]["world_size"] == 2
        accuracies = re.findall(r"\] accuracy (\d\.\d+)", job.output)
        assert accuracies, job.output
        assert min(map(float, accuracies)) > 0.9
