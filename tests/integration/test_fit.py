"""`fit` with `ElasticCallback`: joins and kills change neither weights nor logs of any kind of fit.

The expected results are those of one undisturbed process, where possible of plain `fit`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.faults import Fault
from tests.harness.fit_job import FitJob, FitResult, assert_same_logs, assert_same_weights

Alone = Callable[[str], FitResult]


def gate(step: int, point: str = "train") -> Fault:
    """Holds rank 0 at a step, until a late joiner is warm."""
    return Fault("gate", point, 0, step=step, action="wait")


def kill_of_root(point: str, step: int = -1, size: int = 3) -> Fault:
    """Kills rank 0 of so many workers; three are there with the late joiner."""
    return Fault(f"kill{size}", point, 0, step=step, size=size)


PLANS = {
    "weighted arrays": [gate(7), kill_of_root("evaluate", step=15)],
    "unknown length": [gate(8), kill_of_root("train", step=14)],  # the last step of an epoch
    "PyDataset": [gate(5, "evaluate"), kill_of_root("train", step=19)],  # the very last step
    "infinite dataset": [gate(7), dataclasses.replace(kill_of_root("train", 12), action="SIGTERM")],
    "eager": [gate(7), kill_of_root("train", step=16)],
    "mixed_float16": [gate(4), kill_of_root("train", step=9)],
}


@pytest.mark.parametrize("case", PLANS)
def test_a_late_joiner_and_a_kill_of_rank_0_change_nothing(
    case: str, tmp_path: Path, fit_alone: Alone
) -> None:
    with FitJob(tmp_path, case, "--num_workers=2", "--audit", plan=PLANS[case]) as job:
        job.let_join("gate")
        job.finish_with(["w1", "w2"], fit_alone(case))
        job.assert_audited(len(job.events("epoch_end")))
        rounds = [e["members"] for e in job.events("round_running")]
        assert rounds == [["w0", "w1"], ["w0", "w1", "w2"], ["w1", "w2"]]
        assert "[w1] world sizes [(2, 3), (3, 2)]" in job.output
        assert "[w2] world sizes [(3, 2)]" in job.output


def test_a_joiner_of_the_second_fit_ends_with_both_although_the_others_are_killed(
    tmp_path: Path, fit_alone: Alone
) -> None:
    """With `evaluate` and `predict` before, between and after."""
    between = Fault("between", "between", 1)
    plan = [between, gate(20), kill_of_root("train", step=30, size=2)]
    with FitJob(tmp_path, "two fits", "--num_workers=2", plan=plan) as job:
        job.let_join("gate")
        job.finish_with(["w2"], fit_alone("two fits"))
        rounds = [(e["training"], e["members"]) for e in job.events("round_running")]
        assert rounds[0] == (1, ["w0", "w1"])
        assert rounds[-2:] == [(2, ["w0", "w2"]), (2, ["w2"])]


def test_three_workers_have_the_result_of_one_and_show_their_progress_once(
    tmp_path: Path, fit_alone: Alone
) -> None:
    with FitJob(tmp_path, "weighted arrays", "--num_workers=3", plan=[]) as job:
        job.finish_with(["w0", "w1", "w2"], fit_alone("weighted arrays"))
        assert len(job.events("round_running")) == 1
        shown = [line.split(" done")[0] for line in job.output.splitlines() if "done" in line]
        assert shown == [f"epoch {n}/6" for n in range(1, 5)]


def test_a_callback_that_stops_within_an_epoch_stops_at_the_step_of_plain_fit(
    tmp_path: Path, fit_alone: Alone
) -> None:
    with FitJob(tmp_path, "stops", "--num_workers=2", plan=[]) as job:
        job.finish_with(["w0", "w1"], fit_alone("stops"))
        assert job.events("job_finished")[0]["step"] == 9


def test_a_metric_that_does_not_add_up_is_exact_in_validation_and_reported(
    tmp_path: Path, fit_alone: Alone
) -> None:
    with FitJob(tmp_path, "largest", "--num_workers=2", plan=[]) as job:
        job.finish()
        expected = fit_alone("largest")
        for worker in ("w0", "w1"):
            found = FitResult.read(job.case_dir, worker)
            assert_same_weights(found, expected)
            history = dict(expected.logs["histories"][0])
            assert len(history.pop("largest")) == 3  # plain fit has it in the training logs too
            assert_same_logs(found.logs["histories"][0], history, worker)
        report = "does not add up over parts of a batch: largest"
        assert job.output.count(report) == 1
