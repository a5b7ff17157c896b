"""Workers join a job by themselves (`run --join`), and leave. The master may come back."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hvd_elastic_keras.common import control
from hvd_elastic_keras.settings import env
from tests.harness.faults import Fault
from tests.harness.job import LIMIT_S, REPOSITORY, SMALL, Job, assert_same_weights, lives
from tests.harness.joiner import Joiner
from tests.harness.metadata_service import MetadataService

Weights = dict[str, np.ndarray]
GATE = Fault("gate", "train", 0, step=10, action="wait")
LATER_GATE = Fault("later", "train", 0, step=18, action="wait")


@contextlib.contextmanager
def master_only(directory: Path, *flags: str, **options: object) -> Iterator[Job]:
    """Yields a job that waits for workers. They leave nothing behind."""
    with Job(directory, "--master_only", *flags, **options) as job:  # type: ignore[arg-type]
        job.wait_for("waiting")
        yield job
    assert list(directory.glob("hvd_elastic-*")) == []


def test_workers_come_go_and_are_killed_and_nothing_is_lost(
    tmp_path: Path, expected_weights: Weights
) -> None:
    with (
        master_only(tmp_path, "--audit", plan=[GATE]) as job,
        Joiner(job, "a") as a,
        Joiner(job, "b") as b,
    ):
        job.wait_for_fault("gate")
        with Joiner(job, "c") as c:
            job.wait_for("round_opened", lambda e: "joins" in e["reason"])
            a.process.send_signal(signal.SIGHUP)
            b.process.send_signal(signal.SIGTERM)
            job.wait_for("slots_revoked", lambda e: e["host"] == "b")
            (worker,) = c.workers()
            job.plan.open_gate("gate")
            worker.kill()
            assert b.exit_code() == control.LEFT
            assert c.exit_code() == 128 + signal.SIGKILL
        job.finish()
        assert a.exit_code() == control.ENDED_WELL
        assert "got SIGHUP (a closed terminal or a lost connection): going on" in a.output
        assert all(e["steps_lost"] == 0 for e in job.events("round_running"))
        assert {e["host"] for e in job.events("worker_registered")} == {"a", "b", "c"}
        assert_same_weights(job.weights(), expected_weights)
        assert all(e["exact"] for e in job.events("epoch_audited"))


@pytest.mark.slow
def test_a_joiner_whose_worker_was_given_up_comes_again(
    tmp_path: Path, expected_weights: Weights
) -> None:
    with (
        master_only(tmp_path, "--heartbeat_timeout_s=3", plan=[GATE, LATER_GATE]) as job,
        Joiner(job, "a") as a,
        Joiner(job, "b") as b,
    ):
        job.wait_for_fault("gate")
        members = job.wait_for("round_running")["members"]
        hosts = {e["worker_id"]: e["host"] for e in job.events("worker_registered")}
        if len(members) < 2:
            members = job.wait_for_round(2)["members"]
        frozen = {"a": a, "b": b}[hosts[members[-1]]]
        (worker,) = frozen.workers()
        worker.suspend()
        job.plan.open_gate("gate")
        job.wait_for("worker_exited", lambda e: "no heartbeat" in e["cause"])
        job.wait_for("worker_registered", lambda e: e["worker_id"] == "w2")
        job.plan.open_gate("later")
        job.finish()
        assert (a.exit_code(), b.exit_code()) == (0, 0)
        assert "joining again" in frozen.output
        assert_same_weights(job.weights(), expected_weights)


@pytest.mark.slow
def test_a_joiner_tells_that_its_worker_runs_while_code_in_c_keeps_the_lock(
    tmp_path: Path, expected_weights: Weights
) -> None:
    plan = [Fault("keep", "train", 0, step=10, action="keep_lock")]
    with (
        master_only(tmp_path, "--heartbeat_timeout_s=6", plan=plan) as job,
        Joiner(job, "a") as a,
    ):
        job.wait_for_fault("keep")
        job.wait(lambda: "has sent no heartbeat for" in job.output or None, "it is told")
        job.plan.open_gate("keep")
        job.finish()
        assert a.exit_code() == control.ENDED_WELL
        assert [e["worker_id"] for e in job.events("worker_registered")] == ["w0"]
        assert_same_weights(job.weights(), expected_weights)


@pytest.mark.slow(but=("True",))
@pytest.mark.parametrize("joiner_answers", [True, False])
def test_the_end_waits_for_a_worker_that_was_given_up_or_says_that_it_may_be_there(
    tmp_path: Path, joiner_answers: bool
) -> None:
    """The worker's joiner ends it a while later, or is out of reach."""
    flags = ("--heartbeat_timeout_s=3", "--min_workers=2")
    with (
        Job(tmp_path, "--master_only", *flags, plan=[GATE]) as job,
        Joiner(job, "a") as a,
        Joiner(job, "b") as b,
    ):
        job.wait_for_fault("gate")
        other = job.wait_for_round(2)["members"][1]
        hosts = {e["worker_id"]: e["host"] for e in job.events("worker_registered")}
        kept, frozen = {"a": (b, a), "b": (a, b)}[hosts[other]]
        (worker,) = frozen.workers()
        if not joiner_answers:
            frozen.process.send_signal(signal.SIGSTOP)
        worker.suspend()
        job.plan.open_gate("gate")
        job.wait_for("worker_exited", lambda e: "no heartbeat" in e["cause"])
        job.process.send_signal(signal.SIGINT)
        assert job.process.wait(LIMIT_S) == 128 + signal.SIGINT, job.report()
        said = f"it is not known that these workers have ended: {other} on {hosts[other]}."
        assert (said in job.output) is not joiner_answers, job.report()
        assert lives(worker) is not joiner_answers
        assert kept.exit_code() == control.LEFT
        if joiner_answers:
            assert frozen.exit_code() == control.LEFT


def test_those_who_have_joined_train_on_without_the_master_and_the_next_one_takes_them_over(
    tmp_path: Path, expected_weights: Weights
) -> None:
    with master_only(tmp_path, plan=[GATE]) as job, Joiner(job, "a") as a:
        job.wait_for_fault("gate")
        job.kill_launcher()
        job.plan.open_gate("gate")
        job.start_launcher()
        job.finish()
        assert a.exit_code() == control.ENDED_WELL
        assert len(job.events("round_running")) == 1
        assert_same_weights(job.weights(), expected_weights)


@pytest.mark.slow
@pytest.mark.parametrize("tls", ["--tls", "--notls"])
def test_a_host_that_does_not_see_the_job_directory_is_told_of(tmp_path: Path, tls: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with Job(tmp_path, tls, "--num_workers=1", "--bind=0.0.0.0", plan=[GATE]) as job:
        job.wait_for_fault("gate")
        token = elsewhere / "token"
        token.write_bytes((job.job_dir / "master.json").read_bytes())
        (job.job_dir / "job.id").rename(tmp_path / "hidden")
        host, port = job.address() or ("", 0)
        by_address = [f"--join={host}:{port}", f"--token_file={token}"]
        with Joiner(job, "b", *by_address, f"--job_dir={elsewhere}/own") as b:
            job.wait(lambda: "b does not see" in job.output or None, "warning")
            job.wait_for("round_opened", lambda e: "joins" in e["reason"])
            job.plan.open_gate("gate")
            job.finish()
            assert b.exit_code() == control.ENDED_WELL
            assert (elsewhere / "own" / "logs" / "w1.log").exists()


@pytest.mark.slow
def test_processes_that_tf_config_names_are_master_and_workers_by_the_same_command(
    tmp_path: Path, expected_weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    cluster = {"worker": [f"localhost:{port}", "other:2222"]}

    def place(index: int) -> str:
        return json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})

    monkeypatch.setenv("TF_CONFIG", place(0))
    with Job(tmp_path, "--join=TF_CONFIG", "--min_workers=2") as job:
        monkeypatch.setenv("TF_CONFIG", place(1))
        same = ("--join=TF_CONFIG", "--min_workers=2", f"--job_dir={job.job_dir}", *SMALL)
        with Joiner(job, "other", *same) as other:
            job.wait_for_round(2)
            job.finish()
            assert other.exit_code() == control.ENDED_WELL
        assert_same_weights(job.weights(), expected_weights)


@pytest.mark.slow
def test_a_machine_that_its_cloud_takes_back_sends_its_worker_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MetadataService() as service:
        monkeypatch.setenv(env.GCP_METADATA[0], service.host)
        monkeypatch.setenv(env.AWS_METADATA[0], f"http://{service.host}")
        with (
            Job(tmp_path, "--num_workers=1", plan=[GATE]) as job,
            Joiner(job, "spot", "--leave_on=sigterm,gcp,aws") as spot,
        ):
            job.wait_for_fault("gate")
            job.wait(lambda: len(job.events("worker_ready")) == 2 or None, "both are ready")
            service.preempted = True
            job.wait_for("slots_revoked", lambda e: e["host"] == "spot")
            job.plan.open_gate("gate")
            assert spot.exit_code() == control.LEFT
            job.finish()
        assert "Google Cloud preempts this machine in 30 s: leaving" in spot.output
        assert not any(e["failed"] for e in job.events("worker_exited"))


def refused(job: Job, *flags: str, stdin: str = "", directory: Path = REPOSITORY) -> str:
    """Returns the one line with which a joiner is refused for good."""
    ended = subprocess.run(
        [sys.executable, "-m", "hvd_elastic_keras.run", *flags],
        cwd=directory,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == control.HOPELESS, ended.stderr
    assert ended.stderr.count("\n") == 1, ended.stderr
    return ended.stderr


def test_who_does_not_fit_is_refused_in_one_line_before_anything_is_started(
    tmp_path: Path,
) -> None:
    model = tmp_path / "model.py"
    model.write_text("from tests.harness.fault_model import *  # noqa: F403\n")
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.py").write_text("another model\n")
    with Job(tmp_path, "--master_only", command=(f"--model={model}", *SMALL)) as job:
        job.wait_for("waiting")
        here, (host, port) = str(job.job_dir), job.address() or ("", 0)
        address = f"--join={host}:{port}"
        assert "refuses the token" in refused(job, address, "--token_file=-", stdin="wrong")
        assert "without a token" in refused(job, address)
        assert "--epochs" in refused(job, f"--join={here}", "--epochs=2")
        assert "waits for no worker w7" in refused(job, f"--join={here}", "--worker_id=w7")
        model.write_text("changed = True\n")
        assert "model.py" in refused(job, f"--join={here}")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            nobody = f"--join=127.0.0.1:{free.getsockname()[1]}"
            ended = subprocess.run(
                [
                    *[sys.executable, "-m", "hvd_elastic_keras.run", nobody],
                    *["--token_file=-", "--join_timeout_s=0"],
                ],
                input="token",
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
        assert ended.returncode == control.FAILED
        assert "No master has answered" in ended.stderr
        assert job.events("worker_registered") == []


def test_who_waits_for_a_master_outlives_the_terminal_and_leaves_by_sigterm() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        where = f"--join=127.0.0.1:{silent.getsockname()[1]}"
        waits = subprocess.Popen(
            [sys.executable, "-m", "hvd_elastic_keras.run", where, "--token_file=-"],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            assert waits.stdin
            assert waits.stderr
            waits.stdin.write(b"token\n")
            waits.stdin.flush()
            silent.settimeout(LIMIT_S)
            silent.accept()[0].close()
            waits.send_signal(signal.SIGHUP)
            assert b"got SIGHUP" in waits.stderr.readline()
            silent.accept()[0].close()
            waits.send_signal(signal.SIGTERM)
            assert waits.wait(LIMIT_S) == control.LEFT
        finally:
            waits.kill()
            waits.communicate()


SCRIPT = """
import sys
import keras
import numpy as np
from hvd_elastic_keras import ElasticCallback

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse")
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
model.fit(x, x.sum(1), epochs=2, verbose=0, callbacks=[ElasticCallback()])
print("loss below", sys.argv[1], model.evaluate(x, x.sum(1), verbose=0) < float(sys.argv[1]))
"""


def test_a_script_with_its_arguments_comes_from_the_master(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with Job(tmp_path, "--master_only", "--min_workers=2", command=(str(script), "1.5")) as job:
        job.wait_for("waiting")
        with Joiner(job, "a") as a, Joiner(job, "b") as b:
            job.finish()
            assert (a.exit_code(), b.exit_code()) == (0, 0)
            assert "loss below 1.5 True" in a.output
            assert "loss below 1.5 True" in b.output


STARTS_A_DAEMON = """
import subprocess
from tests.harness.fault_model import *  # noqa: F403
from tests.harness.fault_model import worker_id

if worker_id() != "alone":
    daemon = subprocess.Popen(["sleep", "1000"], start_new_session=True)
"""


def test_daemons_that_workers_have_started_end_with_them_here_and_at_joiners(
    tmp_path: Path,
) -> None:
    model = tmp_path / "model.py"
    model.write_text(STARTS_A_DAEMON)
    command = (f"--model={model}", *SMALL)
    with Job(tmp_path, "--num_workers=1", plan=[GATE], command=command) as job:
        job.wait_for_fault("gate")
        with Joiner(job, "b") as b:
            job.wait_for("round_opened", lambda e: "joins" in e["reason"])
            daemons = [p for p in job.worker_processes() if p.name() == "sleep"]
            assert len(daemons) == 2
            job.plan.open_gate("gate")
            job.finish()
            assert b.exit_code() == control.ENDED_WELL
