"""The launcher's output finds no space or no reader: the job continues all the same."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil

from tests.harness.faults import Fault
from tests.harness.job import LIMIT_S, Job, assert_same_weights
from tests.harness.small_disk import small_disk

GATE = Fault("gate", "train", 0, step=10, action="wait")
PIPE_BYTES = 4096
"""The least capacity of a pipe."""


def replace_a_worker(job: Job) -> None:
    """Kills a worker while the others wait at the gate, and waits for its replacement."""
    job.wait_for_fault("gate")
    other = job.wait_for_round(2)["members"][1]
    job.signal(other, signal.SIGKILL)
    job.wait_for("worker_ready", lambda e: e["worker_id"] == "w2")
    assert "w2" in job.ctl("status")


TOLD = "warning: what the launcher prints cannot be written (No space left on device)"


def test_a_full_device_for_all_that_is_printed_changes_nothing_in_a_job(
    tmp_path: Path, expected_weights: dict[str, np.ndarray]
) -> None:
    job = Job(tmp_path, "--num_workers=2", "--all_output", plan=[GATE])
    with open("/dev/full", "wb") as full:
        job.stdout = job.stderr = full.fileno()
        with job:
            replace_a_worker(job)
            assert TOLD in job.ctl("status")
            job.plan.open_gate("gate")
            job.finish()
            assert "finished after 24 steps" in (job.job_dir / "logs/launcher.log").read_text()
            assert_same_weights(job.weights(), expected_weights)


def test_a_job_with_a_full_device_for_its_output_only_goes_on_and_is_stopped_by_sigterm(
    tmp_path: Path,
) -> None:
    job = Job(tmp_path, "--num_workers=2", "--all_output", plan=[GATE])
    with open("/dev/full", "wb") as full:
        job.stdout = full.fileno()
        with job:
            replace_a_worker(job)
            assert TOLD in job.ctl("status")
            job.process.send_signal(signal.SIGTERM)
            job.wait_for("job_stopping")
            job.plan.open_gate("gate")
            job.finish(128 + signal.SIGTERM)
            said = (job.job_dir / "logs/launcher.log").read_text()
            assert "was killed by SIGKILL; starting a replacement" in said
            assert "Traceback" not in job.output


def test_what_a_full_disk_has_held_up_is_written_when_there_is_room(tmp_path: Path) -> None:
    job = Job(tmp_path, "--num_workers=2", plan=[GATE])
    with small_disk(tmp_path / "disk") as disk, (disk.path / "log").open("wb") as log:
        disk.fill()
        job.stdout = job.stderr = log.fileno()
        with job:
            replace_a_worker(job)
            assert "No space left on device" in job.ctl("status")
            assert Path(log.name).read_text() == ""
            disk.make_room()
            job.plan.open_gate("gate")
            job.finish()
            assert_all_is_said(Path(log.name).read_text())


def test_a_job_directory_without_any_room_is_refused(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        disk.fill()
        job_dir = disk.path / "job"
        with Job(tmp_path, "--num_workers=2", f"--job_dir={job_dir}") as job:
            assert job.process.wait(LIMIT_S) == 2
            assert job.output.startswith("error: ")
            assert job.output.endswith(
                " cannot be written: No space left on device. Make room there, or give another "
                "--job_dir.\n"
            )
            assert len(job.output.splitlines()) == 1
            assert not job_dir.exists()


@contextlib.contextmanager
def paused_reader() -> Iterator[tuple[int, int]]:
    """Yields both ends of a pipe that is full."""
    source, sink = os.pipe()
    size = fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    os.write(sink, b"x" * (size - 1) + b"\n")
    try:
        yield source, sink
    finally:
        os.close(source)
        os.close(sink)


def test_a_reader_who_pauses_holds_up_nothing_and_reads_all_of_it_later(tmp_path: Path) -> None:
    job = Job(tmp_path, "--num_workers=2", plan=[GATE])
    with paused_reader() as (source, sink):
        job.stdout = job.stderr = sink
        with job:
            replace_a_worker(job)
            job.wait(
                lambda: "nobody reads the launcher's output" in job.ctl("status") or None,
                "warning about the reader",
            )
            said: list[bytes] = []
            reader = threading.Thread(target=read_on, args=(source, said), daemon=True)
            reader.start()
            job.plan.open_gate("gate")
            job.finish()
            os.write(sink, b"\0")
            reader.join(LIMIT_S)
            assert_all_is_said(b"".join(said).decode().split("\n", 1)[1])


def test_a_reader_who_never_reads_on_is_not_waited_for_at_the_end(tmp_path: Path) -> None:
    job = Job(tmp_path, "--num_workers=2")
    with paused_reader() as (_, sink):
        job.stdout = job.stderr = sink
        with job:
            job.finish()
            assert "finished after 24 steps" in (job.job_dir / "logs/launcher.log").read_text()


def read_on(source: int, said: list[bytes]) -> None:
    """Reads until the test writes a zero."""
    while not (data := os.read(source, PIPE_BYTES)).endswith(b"\0"):
        said.append(data)
    said.append(data[:-1])


def assert_all_is_said(text: str) -> None:
    """Asserts the lines of a job whose w1 was replaced, each once and in order."""
    parts = (
        "job directory: ",
        "round 1: 2 workers",
        "was killed by SIGKILL; starting a replacement",
        "finished after 24 steps",
    )
    lines = text.splitlines()
    found = [[n for n, line in enumerate(lines) if part in line] for part in parts]
    assert all(len(places) == 1 for places in found), text
    assert found == sorted(found), text
    assert "missing" not in text


def test_a_journal_without_room_begins_anew_when_there_is_some_and_workers_are_taken_over(
    tmp_path: Path, expected_weights: dict[str, np.ndarray]
) -> None:
    with Job(tmp_path, "--num_workers=2", plan=[GATE]) as job:
        job.wait_for_fault("gate")
        journal = job.job_dir / "journal"
        with no_file_grows(job.process.pid):
            job.ctl("remove", "w1")
            told = "warning: the journal cannot be written (File too large)"
            assert told in job.ctl("status")
            assert not journal.exists()
        job.wait(lambda: "the journal is written again" in job.output or None, "line about it")
        assert journal.exists()
        assert "journal" not in job.ctl("status")
        job.kill_launcher()
        job.start_launcher("--resume")
        assert job.wait_for("master_restarted")["workers"] == ["w0", "w1"]
        job.plan.open_gate("gate")
        job.finish()
        assert job.output.count("the journal cannot be written") == 1
        assert job.output.count("the journal is written again") == 1
        assert [e["steps_lost"] for e in job.events("round_running")] == [0, 0]
        assert_same_weights(job.weights(), expected_weights)


@contextlib.contextmanager
def no_file_grows(pid: int) -> Iterator[None]:
    """Makes a process's writes fail within the block, as on a full disk."""
    process = psutil.Process(pid)
    before = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        process.rlimit(psutil.RLIMIT_FSIZE, before)


def test_a_job_without_a_terminal_of_its_own_outlives_sighup(tmp_path: Path) -> None:
    with Job(tmp_path, "--num_workers=2", plan=[GATE]) as job:
        job.wait_for_fault("gate")
        for _ in range(2):
            job.process.send_signal(signal.SIGHUP)
        job.wait(lambda: "got SIGHUP" in job.output or None, "line about it")
        assert "running" in job.ctl("status")
        job.plan.open_gate("gate")
        job.finish()
        assert job.output.count("got SIGHUP") == 1
        assert not (job.job_dir / "logs/launcher.log").exists(), "its file is there still"
