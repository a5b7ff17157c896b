"""The launcher is killed. Its workers train on, and the same command takes them over."""

from __future__ import annotations

import signal
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.harness.faults import Fault
from tests.harness.job import LIMIT_S, Job, assert_same_weights, lives

Weights = dict[str, np.ndarray]
GATE = Fault("gate", "train", 0, step=10, action="wait")


def assert_untouched(job: Job, expected: Weights) -> None:
    """Asserts that no process was restarted, no step was repeated, and the weights are right."""
    job.finish()
    assert len(job.events("worker_started")) == 2
    assert len(job.events("round_running")) == 1
    assert [e for e in job.events("worker_exited") if e["failed"]] == []
    job.assert_audited(epochs=3)
    assert_same_weights(job.weights(), expected)


def test_workers_are_taken_over_in_the_midst_of_their_training(
    tmp_path: Path, expected_weights: Weights
) -> None:
    with Job(tmp_path, "--num_workers=2", "--audit", plan=[GATE]) as job:
        job.wait_for_fault("gate")
        job.kill_launcher()
        job.start_launcher("--resume")
        taken_over = job.wait_for("master_restarted")
        assert (taken_over["term"], taken_over["workers"]) == (2, ["w0", "w1"])
        job.plan.open_gate("gate")
        assert_untouched(job, expected_weights)
        assert "the launcher is back (term 2); taken over: w0, w1" in job.output


@pytest.mark.slow
def test_a_training_that_ended_without_a_launcher_is_reported_to_the_next_one(
    tmp_path: Path, expected_weights: Weights
) -> None:
    with Job(tmp_path, "--num_workers=2", "--audit", plan=[GATE]) as job:
        job.wait_for_fault("gate")
        job.kill_launcher()
        job.plan.open_gate("gate")
        workers = job.worker_processes()
        job.wait_while_alone((job.job_dir / "model.keras").exists)
        assert all(lives(w) for w in workers), "they wait for somebody to tell it"
        job.start_launcher()
        assert_untouched(job, expected_weights)
        assert [e["epoch"] for e in job.events("epoch_end")] == [0, 1, 2]


def test_a_worker_that_dies_without_a_launcher_is_replaced_by_the_next_one(
    tmp_path: Path, expected_weights: Weights
) -> None:
    with Job(tmp_path, "--num_workers=2", "--audit", plan=[GATE]) as job:
        job.wait_for_fault("gate")
        root, other = job.wait_for_round(2)["members"]
        job.kill_launcher()
        job.signal(other, signal.SIGKILL)
        job.plan.open_gate("gate")
        job.start_launcher()
        alone = job.wait_for_round(1)
        assert alone["members"] == [root]
        assert alone["reason"] == f"{other} was killed by SIGKILL"
        assert alone["steps_lost"] == 0
        job.finish()
        job.assert_audited(epochs=3)
        assert_same_weights(job.weights(), expected_weights)


@pytest.mark.slow
def test_workers_without_a_launcher_are_stopped_by_ctl_and_go_on_where_they_were(
    tmp_path: Path, expected_weights: Weights
) -> None:
    with (
        Job(tmp_path, "--num_workers=2", "--audit", plan=[GATE]) as job,
        ThreadPoolExecutor() as pool,
    ):
        job.wait_for_fault("gate")
        members = job.wait_for_round(2)["members"]
        logs = [job.job_dir / "logs" / f"{member}.log" for member in members]
        job.kill_launcher()
        stopping = pool.submit(job.ctl, "stop")
        job.wait_while_alone(
            lambda: all("no launcher hears of it" in log.read_text() for log in logs)
        )
        job.plan.open_gate("gate")
        assert stopping.result(LIMIT_S).splitlines() == [
            "the launcher of this job is gone; 2 workers (w0, w1) on this host leave after the "
            "current step",
            f"all have left; to continue: python -m hvd_elastic_keras.run --resume "
            f"--job_dir={job.job_dir}",
        ]
        assert job.worker_processes() == []
        assert "no worker of it is left on this host" in job.ctl("stop", exit_code=1)
        job.start_launcher("--resume")
        job.finish()
        assert job.events("checkpoint_loaded")[0]["step"] >= 10
        job.assert_audited(epochs=3)
        assert_same_weights(job.weights(), expected_weights)


@pytest.mark.slow
def test_a_worker_that_gets_sigterm_without_a_launcher_leaves_after_the_step(
    tmp_path: Path, expected_weights: Weights
) -> None:
    with Job(tmp_path, "--num_workers=2", "--audit", plan=[GATE]) as job:
        job.wait_for_fault("gate")
        root, other = job.wait_for_round(2)["members"]
        log = job.job_dir / "logs" / f"{other}.log"
        job.kill_launcher()
        leaving = [p for p in job.worker_processes() if p.pid == job.pid_of(other)]
        job.signal(other, signal.SIGTERM)
        job.wait_while_alone(lambda: "no launcher hears of it" in log.read_text())
        job.plan.open_gate("gate")
        assert psutil.wait_procs(leaving, timeout=LIMIT_S)[1] == []
        assert "leaving: SIGTERM, without a launcher" in log.read_text()
        job.start_launcher("--resume")
        alone = job.wait_for_round(1)
        assert (alone["members"], alone["steps_lost"]) == ([root], 0)
        job.finish()
        job.assert_audited(epochs=3)
        assert_same_weights(job.weights(), expected_weights)


def test_another_command_or_token_is_refused_as_long_as_workers_train(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a" * 32)
    token.chmod(0o600)
    with Job(tmp_path, "--num_workers=2", f"--token_file={token}", plan=[GATE]) as job:
        job.wait_for_fault("gate")
        assert job.token() == "a" * 32
        job.kill_launcher()
        job.start_launcher("--epochs=7")
        assert job.process.wait(LIMIT_S) == 2
        (error,) = [line for line in job.output.splitlines() if line.startswith("error: ")]
        assert "workers of a killed launcher are still training" in error
        assert "--num_workers=2" in error
        assert f"hvd_elastic_keras.run --resume --job_dir={job.job_dir}" in error
        token.write_text("b" * 32)
        job.start_launcher()
        assert job.process.wait(LIMIT_S) == 2
        assert "--token_file holds another token than the one that they know" in job.output
        token.write_text("a" * 32)
        job.start_launcher()
        job.plan.open_gate("gate")
        job.finish()


@pytest.mark.slow
@pytest.mark.parametrize("others", [1, 0])
def test_workers_leave_if_no_launcher_comes_and_the_job_goes_on_from_a_checkpoint(
    tmp_path: Path, expected_weights: Weights, others: int
) -> None:
    flags = ("--num_workers=2", "--audit", "--master_timeout_s=2")
    with Job(tmp_path, *flags, plan=[GATE]) as job:
        job.wait_for_fault("gate")
        workers = job.worker_processes()
        other = job.wait_for_round(2)["members"][1]
        job.kill_launcher()
        if not others:
            job.signal(other, signal.SIGKILL)
        job.wait_while_alone(lambda: _who_say_how_to_go_on(job) == 1 + others)
        job.plan.open_gate("gate")
        _, alive = psutil.wait_procs(workers, timeout=LIMIT_S)
        assert alive == []
        job.start_launcher()
        job.finish()
        (loaded,) = job.events("checkpoint_loaded")
        assert loaded["step"] == GATE.step + others, "that of their last step"
        job.assert_audited(epochs=3)
        assert_same_weights(job.weights(), expected_weights)


def _who_say_how_to_go_on(job: Job) -> int:
    logs = [path.read_text() for path in (job.job_dir / "logs").glob("w*.log")]
    return sum("To go on: python -m hvd_elastic_keras.run --resume --job_dir=" in t for t in logs)


def of_another_release(journal: Path) -> None:
    body = b'{"version": "of another release"}'
    journal.write_bytes(b"%08x %b\n" % (zlib.crc32(body), body))


@pytest.mark.slow(but=("of_another_release",))
@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (of_another_release, "cannot be read: another release of this package has written it"),
        (Path.unlink, "cannot be read (No such file or directory)"),
    ],
    ids=["of_another_release", "gone"],
)
def test_without_a_journal_the_workers_are_ended_with_a_word_on_what_is_lost(
    tmp_path: Path, expected_weights: Weights, spoil: Callable[[Path], None], why: str
) -> None:
    with Job(tmp_path, "--num_workers=2", "--audit", plan=[GATE]) as job:
        job.wait_for_fault("gate")
        checkpoint = job.job_dir / "checkpoints" / "step-00000008"
        job.wait(lambda: checkpoint.exists() or None, "checkpoint")
        workers = job.worker_processes()
        job.kill_launcher()
        spoil(job.job_dir / "journal")
        job.start_launcher("--resume")
        assert job.process.wait(LIMIT_S) == 2
        assert f"with which command its job was started (its journal {why})" in job.output
        assert all(lives(w) for w in workers if w.pid in map(job.pid_of, ("w0", "w1")))
        job.start_launcher()
        assert job.wait_for("checkpoint_loaded")["step"] == 8
        assert f"cannot be taken over: the journal {why}. They are ended, and what they have" in (
            job.output
        )
        job.finish()
        job.assert_audited(epochs=3)
        assert_same_weights(job.weights(), expected_weights)


def test_a_worker_whose_arrival_the_journal_has_lost_trains_on_with_the_others(
    tmp_path: Path, expected_weights: Weights
) -> None:
    later = Fault("later", "train", 0, step=18, action="wait")
    with Job(tmp_path, "--num_workers=2", "--audit", plan=[GATE, later]) as job:
        job.wait_for_fault("gate")
        job.ctl("add", "1")
        job.wait_for("round_opened", lambda e: "joins" in e["reason"])
        job.plan.open_gate("gate")
        before = job.wait_for_round(3)
        job.wait_for_fault("later")
        job.kill_launcher()
        damage_the_end(job.job_dir / "journal")
        job.start_launcher("--resume")
        job.wait_for("master_restarted")
        job.plan.open_gate("later")
        after = job.wait_for_round(3, after=before["round"] + 1)
        assert set(after["members"]) == set(before["members"])
        assert "warning: the end of the journal cannot be read" in job.output
        job.finish()
        assert [e for e in job.events("worker_exited") if e["failed"]] == []
        assert [e["steps_lost"] for e in job.events("round_running") if e["steps_lost"]] == []
        job.assert_audited(epochs=3)
        assert_same_weights(job.weights(), expected_weights)


def damage_the_end(journal: Path) -> None:
    """Damages one byte of each of the last two entries, as a disk does."""
    lines = journal.read_bytes().splitlines(keepends=True)
    assert len(lines) > 2
    lines[-2:] = [bytes([line[0] ^ 1]) + line[1:] for line in lines[-2:]]
    journal.write_bytes(b"".join(lines))
