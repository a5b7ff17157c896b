"""Callbacks of `fit` that write files: once, by rank 0, whoever that is at the time."""

from __future__ import annotations

import csv
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

from tests.harness.faults import Fault
from tests.harness.fit_job import FitJob, FitResult, assert_same_logs, assert_same_weights
from tests.harness.job import assert_same_weights as assert_same_variables
from tests.harness.job import read_weights


def test_files_are_those_of_one_process_when_three_ranks_0_are_killed(
    tmp_path: Path, fit_alone_dir: Path
) -> None:
    plan = [
        Fault("gate", "train", 0, step=7, action="wait"),
        Fault("step", "train", 0, step=9, size=4),
        Fault("saving", "checkpoint", 0, step=18, size=3),
        Fault("evaluation", "evaluate", 0, step=24, size=2),
    ]
    with FitJob(tmp_path, "writers", "--num_workers=3", plan=plan) as job:
        job.let_join("gate", "w3")
        alone = fit_alone_dir / "writers"
        result = FitResult.read(alone, "alone")
        job.finish_with(["w3"], result)
        found, expected = job.case_dir / "files", alone / "files"
        assert_same_csv(found / "log.csv", expected / "log.csv")
        assert_same_checkpoints(found, expected, tmp_path)
        assert_same_board(found / "board", expected / "board")
        writers = {str(job.pid_of(worker)) for worker in ("w0", "w1", "w2", "w3")}
        for kind in ("train", "validation"):
            pids = [p.name.split(".")[-3] for p in (found / "board" / kind).iterdir()]
            assert sorted(pids) == sorted(writers)
        assert (found / "w2.txt").read_text().split() == ["0", "1", "2", "3"]
        assert (found / "w3.txt").read_text().split() == ["2", "3", "4"]


def assert_same_csv(found: Path, expected: Path) -> None:
    """The same rows, one per epoch."""
    (names, *rows), (other_names, *other_rows) = (
        list(csv.reader(path.read_text().splitlines())) for path in (found, expected)
    )
    assert names == other_names
    assert [row[0] for row in rows] == ["0", "1", "2", "3", "4"]
    numbers, other_numbers = ([[float(v) for v in row] for row in r] for r in (rows, other_rows))
    assert_same_logs(numbers, other_numbers, "csv")


def assert_same_checkpoints(found: Path, expected: Path, scratch: Path) -> None:
    """`ModelCheckpoint` has written the same files."""
    names, other_names = (
        sorted(p.name for p in path.iterdir() if p.suffix in (".keras", ".h5"))
        for path in (found, expected)
    )
    assert names == other_names
    assert len(names) > 6
    for name in names:
        assert_same_variables(*(read_weights(p / name, scratch) for p in (found, expected)))


def assert_same_board(found: Path, expected: Path) -> None:
    """TensorBoard shows each value once."""
    for kind in ("train", "validation"):
        scalars = scalars_of(found / kind)
        assert "epoch_loss" in scalars
        assert_same_logs(scalars, scalars_of(expected / kind), kind)


def scalars_of(directory: Path) -> dict[str, Any]:
    """[step, value] of all scalars."""
    board = EventAccumulator(str(directory), size_guidance={"tensors": 0})
    board.Reload()
    result: dict[str, Any] = {}
    for tag in board.Tags()["tensors"]:
        events = board.Tensors(tag)
        values = [[e.step, tensor_util.make_ndarray(e.tensor_proto)] for e in events]
        if values[0][1].dtype == "float32":
            result[tag] = [[step, float(value)] for step, value in values]
    return result


@pytest.mark.parametrize("job_directory", ["kept", "lost"])
def test_an_interrupted_job_goes_on_from_its_directory_or_else_from_the_users_backup(
    job_directory: str, tmp_path: Path, fit_alone_dir: Path
) -> None:
    plan = [Fault("gate", "train", 0, step=8, action="wait")]
    with FitJob(tmp_path, "backup", "--num_workers=2", plan=plan) as job:
        job.wait_for_fault("gate")
        job.process.send_signal(signal.SIGINT)
        job.wait_for("job_stopping")
        job.plan.open_gate("gate")
        job.finish(exit_code=130)
        assert (job.case_dir / "files" / "backup").is_dir()
    if job_directory == "lost":
        shutil.rmtree(job.job_dir)
    with FitJob(tmp_path, "backup", "--num_workers=2", plan=plan) as job:
        job.finish()
        expected = FitResult.read(fit_alone_dir / "backup", "alone")
        workers = ["w0", "w1"] if job_directory == "lost" else ["w2", "w3"]
        for worker in workers:
            found = FitResult.read(job.case_dir, worker)
            assert_same_weights(found, expected)
            epochs_before = 1 if job_directory == "lost" else 0
            history = {
                name: values[epochs_before:]
                for name, values in expected.logs["histories"][0].items()
            }
            assert_same_logs(found.logs["histories"][0], history, worker)
        assert not (job.case_dir / "files" / "backup").exists()
