"""Another user of the machine, who knows no secret, sends garbage to all ports of a job."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from pathlib import Path

import numpy as np
import psutil
import pytest

from hvd_elastic_keras.common import files
from tests.harness.faults import Fault
from tests.harness.job import Job, assert_same_weights

GARBAGE = [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(8), os.urandom(5000)]


def listening_at(processes: list[psutil.Process]) -> list[tuple[str, int]] | None:
    """Returns where the processes listen; None if they do not listen yet."""
    found = [c for p in processes for c in p.net_connections("tcp")]
    return [tuple(c.laddr) for c in found if c.status == psutil.CONN_LISTEN] or None


def assert_kept_secret(token: str, job: Job, directory: Path) -> None:
    """Asserts that the token is in no command line, and in only one file."""
    processes = [psutil.Process(job.process.pid), *job.worker_processes()]
    assert len(processes) >= 3
    assert not [p for p in processes if token in " ".join(p.cmdline())]
    assert files_with(token, directory) == {job.job_dir / files.MASTER}


def files_with(text: str, directory: Path) -> set[Path]:
    found = [path for path in directory.rglob("*") if path.is_file()]
    return {path for path in found if text.encode() in path.read_bytes()}


@pytest.mark.slow
def test_garbage_during_changes_of_rounds_changes_nothing_and_the_token_stays_secret(
    tmp_path: Path, expected_weights: dict[str, np.ndarray]
) -> None:
    holds = [Fault(f"hold{n}", "init", rank=1, round=n, action="wait") for n in (1, 2)]
    plan = [*holds, Fault("kill", "train", rank=2, step=5)]
    flags = ("--num_workers=3", "--max_restarts=0")
    with Job(tmp_path, *flags, plan=plan) as job, contextlib.ExitStack() as stack:
        for hold in holds:
            # The first workers listen, while the last one is held before `hvd.init()`.
            job.wait_for_fault(hold.name)
            addresses = job.wait(functools.partial(listening_at, job.worker_processes()), "ports")
            assert {host for host, _ in addresses} == {"127.0.0.1"}
            for address in [*addresses, job.address()]:
                for data in 5 * GARBAGE:
                    stranger = stack.enter_context(socket.create_connection(address))
                    stranger.sendall(data)
            token = job.token()
            assert_kept_secret(token, job, tmp_path)
            job.plan.open_gate(hold.name)
        job.finish()
        rounds = job.events("round_running")
        assert [(e["round"], e["world_size"]) for e in rounds] == [(1, 3), (2, 2)], "none failed"
        assert [e["steps_lost"] for e in rounds] == [0, 0]
        assert job.plan.happened("kill")
        assert "Traceback" not in job.output
        assert files_with(token, tmp_path) == set()
        assert_same_weights(job.weights(), expected_weights)
