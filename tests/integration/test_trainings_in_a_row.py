"""Several trainings in one script, with real processes that use the session without TensorFlow."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.job import Job

SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.common.errors import ConfigurationError, TrainingOverError
from hvd_elastic_keras.worker.session import EntryReport
from hvd_elastic_keras.worker.session_of_process import session_of_process

environment = env.worker_environment()
session = session_of_process(environment)
directory = Path(environment.job_dir)

class Nothing:
    in_collective = False

    def computing(self):
        return False

    def abort(self, through_round):
        return False

def train():
    session.join(Nothing(), 0, 0.0)
    assert session.in_training
    try:
        place = session.enter(EntryReport(has_state=False, progress=0, step=0))
    except TrainingOverError as error:
        print("over", session.training, error)
        return
    assert place.sync and not place.root_has_state
    session.running(0, "training")
    session.reporter.at("training", 3 * session.training, 3)
    (directory / f"round{place.round}-{place.rank}").touch()
    while len(list(directory.glob(f"round{place.round}-*"))) < place.size:
        time.sleep(0.01)
    session.finish()
    assert not session.in_training
    print("trained", session.training, "rank", place.rank, "of", place.size)
"""


def write(directory: Path, text: str) -> str:
    path = directory / "script.py"
    path.write_text(SCRIPT + text)
    return str(path)


def test_a_worker_killed_between_two_trainings_is_replaced_for_the_second(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        """
train()
if session.worker_id == "w1":
    time.sleep(0.5)  # the master hears that it is done
    os.kill(os.getpid(), signal.SIGKILL)
if session.worker_id == "w0":
    time.sleep(1.5)
train()
print("end of the script")
""",
    )
    with Job(tmp_path, "--num_workers=2", "--all_output", command=(script,)) as job:
        job.finish()
        rounds = job.events("round_running")
        assert [(r["training"], r["members"]) for r in rounds] == [
            (1, ["w0", "w1"]),
            (2, ["w0", "w2"]),
        ]
        assert "w1 was killed by SIGKILL before training 2; starting a replacement" in job.output
        assert "round 2: 2 workers (w0, w2) start training 2" in job.output
        assert "[w2] over 1 Training 1 of this job was finished without this worker." in job.output
        assert "[w2] trained 2 rank 1 of 2" in job.output
        assert job.output.count("end of the script") == 2
        assert "finished after 2 trainings, the last of 6 steps" in job.output
        assert job.events("job_finished")[0]["training"] == 2


def test_trainings_one_after_the_other_at_once_lose_no_worker(tmp_path: Path) -> None:
    script = write(tmp_path, "for _ in range(20):\n    train()\n")
    with Job(tmp_path, "--num_workers=3", command=(script,)) as job:
        job.finish()
        sizes = [r["world_size"] for r in job.events("round_running")]
        assert sizes == [3] * 20
        assert not [e for e in job.events("worker_exited") if e["failed"]]


def test_an_error_of_the_script_after_its_training_fails_the_job_and_is_shown(
    tmp_path: Path,
) -> None:
    script = write(tmp_path, "train()\nraise ArithmeticError('this script is broken')\n")
    with Job(tmp_path, "--num_workers=2", command=(script,)) as job:
        job.finish(exit_code=1)
        assert "ArithmeticError: this script is broken" in job.output
        assert "the job failed: w0 failed with exit code 1 after the training" in job.output
        assert len(job.events("worker_started")) == 2


@pytest.mark.slow
def test_a_configuration_error_of_the_script_ends_the_job_with_its_message_alone(
    tmp_path: Path,
) -> None:
    script = write(tmp_path, "raise ConfigurationError('epochs=0 was given')\n")
    with Job(tmp_path, "--num_workers=2", command=(script,)) as job:
        job.finish(exit_code=2)
        assert job.output.count("epochs=0 was given") == 1
        assert job.output.splitlines()[-1] == "error: epochs=0 was given"
        assert "Traceback" not in job.output
        assert len(job.events("worker_started")) == 2


@pytest.mark.slow
def test_a_configuration_error_after_a_training_ends_the_job_as_failed(tmp_path: Path) -> None:
    script = write(tmp_path, "train()\nraise ConfigurationError('epochs=0 was given')\n")
    with Job(tmp_path, "--num_workers=2", command=(script,)) as job:
        job.finish(exit_code=1)
        assert job.output.splitlines()[-1] == "error: epochs=0 was given"
        assert job.events("job_finished")[0]["reason"] == "epochs=0 was given"
