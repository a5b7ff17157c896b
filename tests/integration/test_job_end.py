"""How jobs end: interrupted, out of restarts, with the launcher killed; and how they continue."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.harness.faults import Fault
from tests.harness.job import LIMIT_S, REPOSITORY, Job, assert_same_weights, lives

Weights = dict[str, np.ndarray]
GATE = Fault("gate", "train", 0, step=10, action="wait")


def test_when_all_workers_are_killed_the_job_goes_on_from_the_newest_checkpoint(
    tmp_path: Path, expected_weights: Weights
) -> None:
    gate = Fault("gate", "train", 0, step=12, action="wait")
    with Job(tmp_path, "--num_workers=2", "--audit", plan=[gate]) as job:
        job.wait_for_fault("gate")
        saved = job.wait_for("checkpoint_saved")
        assert saved["step"] == 8  # the end of the first epoch
        for worker in ("w0", "w1"):
            job.signal(worker, signal.SIGKILL)
        assert job.wait_for("checkpoint_loaded")["step"] == 8
        job.finish()
        assert_same_weights(job.weights(), expected_weights)
        job.assert_audited(epochs=3)


@pytest.mark.slow
def test_when_all_workers_are_killed_too_often_the_job_fails_and_says_why(tmp_path: Path) -> None:
    plan = [
        *(Fault(f"first{rank}", "train", rank, step=3) for rank in (0, 1)),
        # The first replacement dies at this step. Then the second one dies at the same step.
        *(Fault(f"second{n}", "train", 0, step=4) for n in (0, 1)),
    ]
    with Job(tmp_path, "--num_workers=2", "--max_restarts=2", plan=plan) as job:
        job.finish(exit_code=1)
        assert "the job failed: no worker is left and all 2 restarts are used up" in job.output
        assert job.events("job_finished")[0]["status"] == "failed"


def test_ctrl_c_stops_the_job_with_a_checkpoint_from_which_it_goes_on(
    tmp_path: Path, expected_weights: Weights
) -> None:
    with Job(tmp_path, "--num_workers=2", "--audit", plan=[GATE]) as job:
        job.wait_for_fault("gate")
        job.process.send_signal(signal.SIGINT)
        job.wait_for("job_stopping")
        job.plan.open_gate("gate")
        job.finish(exit_code=130)
        assert "stopped at step 11: interrupted" in job.output
        assert "to continue: python -m hvd_elastic_keras.run --resume --job_dir=" in job.output
        assert job.events("checkpoint_saved")[-1]["step"] == 11
        assert [e for e in job.events("worker_exited") if e["failed"]] == []
    with Job(tmp_path, "--num_workers=3", "--audit") as again:
        again.finish()
        assert again.events("checkpoint_loaded")[-1]["step"] == 11
        assert_same_weights(again.weights(), expected_weights)
        again.assert_audited(epochs=3)


def test_ctl_shows_what_workers_print_and_stops_the_job(tmp_path: Path) -> None:
    with Job(tmp_path, "--num_workers=2", plan=[GATE]) as job:
        job.wait_for_fault("gate")
        assert "w1| " in job.ctl("logs")
        of_one = job.ctl("logs", "w1")
        assert of_one
        assert "w1| " not in of_one
        command = [sys.executable, "-m", "hvd_elastic_keras.ctl", f"--job_dir={job.job_dir}"]
        follower = subprocess.Popen(
            [*command, "logs", "w0", "-f"], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
        )
        assert follower.stdout is not None
        first = follower.stdout.readline()
        assert "The job stops after the current step." in job.ctl("stop")
        job.wait_for("job_stopping")
        assert "is stopping already" in job.ctl("stop")
        job.plan.open_gate("gate")
        job.finish(exit_code=143)
        assert "stopped at step 11: asked to by ctl stop" in job.output
        report = job.ctl("env")
        assert "--num_workers=2" in report
        assert "1 round; stopped at step 11: asked to by ctl stop" in report
        # `communicate` would lose what `readline` has read ahead.
        followed = follower.stdout.read()
        assert follower.wait(LIMIT_S) == 0
        assert first + followed == job.ctl("logs", "w0")
        assert job.events("checkpoint_saved")[-1]["step"] == 11


def test_sigterm_of_the_launcher_stops_workers_that_are_still_starting(tmp_path: Path) -> None:
    with Job(tmp_path, "--num_workers=2") as job:
        job.wait_for("worker_started")
        job.process.send_signal(signal.SIGTERM)
        job.finish(exit_code=143)


def test_a_job_ends_when_its_directory_is_removed_and_touches_nothing_there(
    tmp_path: Path,
) -> None:
    with Job(tmp_path, "--num_workers=2", plan=[GATE]) as job:
        job.wait_for_fault("gate")
        # The first epoch's checkpoint; none is being written any more.
        job.wait_for("checkpoint_saved")
        address = job.address()
        job.job_dir.rename(tmp_path / "removed")
        job.job_dir.mkdir()
        of_another_job = job.job_dir / "master.json"
        of_another_job.write_text("of another job")
        assert job.process.wait(LIMIT_S) == 1, job.report()
        assert job.output.count("was removed while the job ran") == 1
        assert "Traceback" not in job.output
        assert list(job.job_dir.iterdir()) == [of_another_job]
        of_another_job.unlink()
        job.wait_while_alone(lambda: not job.worker_processes())
        job.assert_nothing_is_left(address)


SLOW_TO_MAKE = """
import os, threading
import numpy as np

def model():
    with open("{told}.new", "w") as file:
        file.write(str(os.getpid()))
    os.replace("{told}.new", "{told}")
    threading.Event().wait(100)

def dataset(split):
    return np.zeros((64, 2), "float32"), np.zeros((64, 1), "float32")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_model_is_checked_leaves_no_process(
    tmp_path: Path, number: signal.Signals
) -> None:
    told, model = tmp_path / "told", tmp_path / "slow_to_make.py"
    model.write_text(SLOW_TO_MAKE.format(told=told))
    with Job(tmp_path, command=(f"--model={model}", "--global_batch_size=64")) as job:
        job.wait(lambda: told.exists() or None, "check")
        check = psutil.Process(int(told.read_text()))
        job.process.send_signal(number)
        job.finish(128 + number)
        assert not lives(check)
        assert job.output.endswith("before any worker was started\n")
        assert not job.job_dir.exists()
