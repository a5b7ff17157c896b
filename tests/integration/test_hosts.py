"""Jobs on several hosts, started by ssh: hosts come and go, are cut off, and are lost."""

from __future__ import annotations

import contextlib
import itertools
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from hvd_elastic_keras.chaos import temporary
from hvd_elastic_keras.settings import env
from tests.harness import hosts as harness
from tests.harness.faults import FILE, Fault
from tests.harness.hosts import Hosts
from tests.harness.job import REPOSITORY, Job, assert_same_weights

EPOCHS = 3


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    """Yields three hosts as found in practice: their networks are not alike, nor of one kind."""
    harness.need_hosts()
    with Hosts(tmp_path / "hosts", ["eth0", "ens5", "eth0"]) as made:
        for host in made.names:
            made.add_bridge(host, "docker0", "172.17.0.1/16")
            made.name_loopback(host)
        yield made


def job_on(hosts: Hosts, directory: Path, *flags: str, plan: list[Fault] | None = None) -> Job:
    """Returns a job that starts its workers on these hosts.

    Only ssh's configuration knows the names of the hosts.
    """
    ssh = f"ssh -F {hosts.ssh_config} -o ConnectTimeout=2"
    return Job(
        directory,
        f"--ssh_command={ssh}",
        f"--ssh_env={FILE},{env.GLOO_TIMEOUT},CUDA_VISIBLE_DEVICES,TF_CPP_MIN_LOG_LEVEL",
        "--audit",
        *flags,
        plan=plan,
    )


def gate(name: str, step: int) -> Fault:
    """Returns a fault that holds rank 0 until the test opens the gate."""
    return Fault(name, "train", rank=0, step=step, action="wait")


def assert_whole(job: Job, hosts: Hosts, expected: dict[str, np.ndarray]) -> None:
    """Asserts the result of one process, each example used once, and no process left."""
    job.finish()
    assert_same_weights(job.weights(), expected)
    job.assert_audited(EPOCHS)
    harness.wait_until(lambda: not any(map(hosts.pids, hosts.names)), "no process is left")


def started_on(job: Job, host: str, count: int) -> list[str]:
    """Waits until this many workers have been ready on a host; returns their ids."""

    def look() -> list[str] | None:
        there = [e["worker_id"] for e in job.events("worker_started") if e["host"] == host]
        ready = {e["worker_id"] for e in job.events("worker_ready")}
        found = [w for w in there if w in ready]
        return found if len(found) >= count else None

    found: list[str] = job.wait(look, f"{count} workers on {host}")
    return found


class Script:
    """A discovery script, and the hosts that it finds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.flag = f"--host_discovery_script=cat {shlex.quote(str(path))}"

    def finds(self, *lines: str) -> None:
        """Sets the hosts that the script finds from now on."""
        newer = self._path.with_suffix(".newer")
        newer.write_text("\n".join(lines))
        newer.replace(self._path)


def test_hosts_come_and_go_and_are_cut_off_and_lost_without_a_trace_in_the_result(
    hosts: Hosts, tmp_path: Path, expected_weights: dict[str, np.ndarray]
) -> None:
    script = Script(tmp_path / "found")
    script.finds("host1")
    steps = {"alone": 2, "cut": 6, "back": 10, "lost": 14, "taken": 18}
    plan = [gate(name, step) for name, step in steps.items()]
    for directory in ("job", "remote"):
        (tmp_path / directory).mkdir()
    hosts.hide("host2", tmp_path / "job")
    flags = (script.flag, "--heartbeat_timeout_s=5", f"--remote_dir={tmp_path / 'remote'}")
    with job_on(hosts, tmp_path, *flags, plan=plan) as job:
        job.wait_for_fault("alone")
        script.finds("host1:1", "host2:2", "host3:1")
        lost = started_on(job, "host2", 2)
        (cut_off,) = started_on(job, "host3", 1)
        # Otherwise rank 0 might go on to "cut".
        job.wait_for("round_opened", lambda e: e["round"] > 1)
        job.plan.open_gate("alone")
        job.wait_for_round(4)
        assert "warning: host2 does not see" in job.output

        job.wait_for_fault("cut")
        hosts.cut("host3")
        wait_for_end(job, cut_off)
        job.plan.open_gate("cut")
        job.wait_for_round(3)
        job.wait_for_fault("back")
        hosts.heal("host3")
        _, back = started_on(job, "host3", 2)
        job.wait_for("round_opened", lambda e: back in e["reason"])
        job.plan.open_gate("back")
        whole = job.wait_for("round_running", lambda e: back in e["members"])

        job.wait_for_fault("lost")
        hosts.power_off("host2")
        ends = [wait_for_end(job, worker_id) for worker_id in lost]
        assert [end["failed"] for end in ends] == [True, True]
        job.plan.open_gate("lost")
        after = job.wait_for_round(2, whole["round"])
        assert after["round"] == whole["round"] + 1, "both workers of the host cost one round"

        job.wait_for_fault("taken")
        script.finds("host1", "host2:2")
        job.wait_for("slots_revoked", lambda e: e["workers"] == [back])
        job.plan.open_gate("taken")
        assert not wait_for_end(job, back)["failed"]
        assert_whole(job, hosts, expected_weights)
        assert "round 2: rank" in (job.job_dir / "logs" / f"{lost[0]}.log").read_text()
        assert len(job.events("round_running")[-1]["members"]) == 1


def test_hosts_without_any_ipv4_train_on_when_one_of_them_is_lost(
    tmp_path: Path, expected_weights: dict[str, np.ndarray]
) -> None:
    harness.need_hosts()
    flags = ("--hosts=host1:1,host2:1", "--heartbeat_timeout_s=5")
    with (
        Hosts(tmp_path / "hosts", ["eth0", "ens5"], ipv4=False) as hosts,
        job_on(hosts, tmp_path, *flags, plan=[gate("lost", 6)]) as job,
    ):
        job.wait_for_fault("lost")
        (lost,) = started_on(job, "host2", 1)
        assert "host2: 1 granted, 1 used" in job.ctl("status")
        hosts.power_off("host2")
        assert wait_for_end(job, lost)["failed"]
        job.plan.open_gate("lost")
        assert_whole(job, hosts, expected_weights)
        sizes = [e["world_size"] for e in job.events("round_running")]
        assert 2 in sizes
        assert sizes[-1] == 1


@pytest.mark.slow
def test_who_is_cut_off_writes_no_checkpoint_whether_it_sees_the_job_directory_or_not(
    hosts: Hosts,
    tmp_path: Path,
    expected_weights: dict[str, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(env.GLOO_TIMEOUT, "3")
    for directory in ("job", "remote"):
        (tmp_path / directory).mkdir()
    flags = (
        "--hosts=host1,host2,host3",
        "--heartbeat_timeout_s=5",
        "--master_timeout_s=3",
        f"--remote_dir={tmp_path / 'remote'}",
        "--checkpoint_every_n_epochs=0",
    )
    plan = [gate("first", 3), gate("second", 6), gate("last", 9)]
    hosts.hide("host2", tmp_path / "job")
    with job_on(hosts, tmp_path, *flags, plan=plan) as job:
        whole = job.wait_for_round(3)
        cut = []
        for name, size in (("first", 2), ("second", 1)):
            job.wait_for_fault(name)
            cut.append(host_of(job, job.events("round_running")[-1]["members"][0]))
            hosts.cut(cut[-1])
            job.wait_for_round(size, whole["round"])
            job.plan.open_gate(name)
        assert cut == ["host1", "host2"]
        job.wait_for_fault("last")
        wait_until_no_worker_is_left(hosts, *cut)
        assert list(tmp_path.rglob("step-*")) == []
        job.plan.open_gate("last")
        job.wait_for("job_finished")
        for host in cut:  # its sshd notices only now that the connection is gone
            hosts.heal(host)
        assert_whole(job, hosts, expected_weights)


@pytest.mark.slow
def test_chaos_cuts_a_host_off_and_brings_it_back(
    hosts: Hosts, tmp_path: Path, expected_weights: dict[str, np.ndarray]
) -> None:
    if missing := temporary.missing_for_cuts():
        pytest.skip(missing)
    flags = ("--hosts=host1,host2", "--heartbeat_timeout_s=5", "--max_restarts=0")
    cut = {"kind": "network_cut", "rank": 0, "address": hosts.address("host1"), "duration_s": 600}
    plan, report = tmp_path / "plan.json", tmp_path / "report.json"
    plan.write_text(json.dumps({"faults": [cut]}))
    command = [sys.executable, "-m", "hvd_elastic_keras.chaos", f"--plan={plan}"]
    with job_on(hosts, tmp_path, *flags, plan=[gate("cut", 6), gate("last", 20)]) as job:
        job.wait_for_fault("cut")
        root = job.wait_for_round(2)["members"][0]
        command += [f"--job_dir={job.job_dir}", f"--report={report}"]
        with subprocess.Popen(command, cwd=REPOSITORY) as breaking:
            try:
                wait_for_end(job, root)
                job.plan.open_gate("cut")
                job.wait_for_fault("last")
                breaking.terminate()
                assert breaking.wait(harness.LIMIT_S) == 130
            finally:
                breaking.kill()
        assert not [rule for rule in rules() if hosts.address("host1") in rule]
        harness.wait_until(lambda: root not in workers_of(job), f"{root} hears that it is over")
        job.plan.open_gate("last")
        assert_whole(job, hosts, expected_weights)
    (outcome,) = json.loads(report.read_text())["outcomes"]
    assert outcome["fired"]["worker_id"] == root
    assert outcome["cost"]["detected_s"] > 0
    assert outcome["cost"]["steps_lost"] == 0


def rules() -> list[str]:
    """Returns the rules of this machine's packet filter."""
    command = ["iptables", "-w", "-S"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def workers_of(job: Job) -> set[str]:
    """Returns the ids of all workers that have a process anywhere."""
    found = set()
    for process in job.worker_processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            found.add(process.environ().get(env.WORKER_ID, ""))
    return found


def host_of(job: Job, worker_id: str) -> str:
    """Returns the host on which a worker was started."""
    started = job.wait_for("worker_started", lambda e: e["worker_id"] == worker_id)
    return str(started["host"])


def wait_until_no_worker_is_left(hosts: Hosts, *names: str) -> None:
    """Waits until all workers of some hosts have ended."""

    def command(pid: int) -> str:
        with contextlib.suppress(psutil.NoSuchProcess):
            return " ".join(psutil.Process(pid).cmdline())
        return ""

    def is_off() -> bool:
        pids = itertools.chain.from_iterable(map(hosts.pids, names))
        return not any("cli.worker_main" in command(pid) for pid in pids)

    harness.wait_until(is_off, f"no worker is left on {names}")


def wait_for_end(job: Job, worker_id: str) -> dict[str, Any]:
    """Waits until the job knows that a worker is gone."""
    return job.wait_for("worker_exited", lambda e: e["worker_id"] == worker_id)


@pytest.mark.slow
def test_workers_train_on_when_the_launcher_and_all_connections_are_gone(
    hosts: Hosts, tmp_path: Path, expected_weights: dict[str, np.ndarray]
) -> None:
    plan = [gate("connected", 6), gate("alone", 12)]
    with job_on(hosts, tmp_path, "--hosts=host1,host3", plan=plan) as job:
        job.wait_for_fault("connected")
        workers = {w for host in ("host1", "host3") for w in started_on(job, host, 1)}
        assert_in_no_command_line(job.token())
        job.kill_launcher()
        connections = [p for p in job.worker_processes() if p.name() == "ssh"]
        assert len(connections) == 2
        for connection in connections:
            connection.kill()
        job.plan.open_gate("connected")
        job.wait_while_alone(lambda: job.plan.happened("alone"))
        job.start_launcher()
        job.wait_for("master_restarted", lambda e: set(e["workers"]) == workers)
        job.plan.open_gate("alone")
        assert_whole(job, hosts, expected_weights)
        assert {e["worker_id"] for e in job.events("worker_started")} == workers


def assert_in_no_command_line(token: str) -> None:
    """Asserts that no process of this machine has the token, and so no process of a host."""
    lines = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
    assert any("hvd_elastic_keras.cli.worker_main" in line for line in lines)
    assert not [line for line in lines if token in line]
