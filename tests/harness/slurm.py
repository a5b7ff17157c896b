"""A Slurm on this machine, usable by the user who has started it, and jobs on it."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tests.harness import faults
from tests.harness.job import LIMIT_S, POLL_S, REPOSITORY, ColdJob

if TYPE_CHECKING:
    from typing_extensions import Self

DEPLOY = REPOSITORY / "hvd_elastic_keras" / "deploy" / "slurm"
PROGRAMS = {"slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client"}
"""The programs of a cluster, and the Debian package of each."""
SEARCHED = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control_port}
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=90
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={node_port} CPUs={cpus}
PartitionName=spare Nodes=ALL Default=YES PriorityTier=1
PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF
"""


def obstacle() -> str:
    """Returns what this machine lacks; empty if it can have a cluster."""
    missing = [name for p, name in PROGRAMS.items() if not shutil.which(p, path=SEARCHED)]
    return f"Slurm is not installed here: apt-get install {' '.join(missing)}" if missing else ""


class Cluster:
    """One node, and two partitions: "urgent" jobs take the place of "spare" jobs.

    Use it in a `with` block: nothing outlives the block.
    """

    def __init__(self, directory: Path, cpus: int) -> None:
        self._directory = directory
        self._cpus = cpus
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.environment = {**os.environ, "SLURM_CONF": str(directory / "slurm.conf")}

    def __enter__(self) -> Self:
        (self._directory / "state").mkdir(parents=True)
        with contextlib.ExitStack() as stack:
            ports = []
            for _ in range(2):
                free = stack.enter_context(socket.socket())
                free.bind(("127.0.0.1", 0))
                ports.append(free.getsockname()[1])
        content = CONFIGURATION.format(
            host=socket.gethostname().partition(".")[0],
            control_port=ports[0],
            node_port=ports[1],
            user=getpass.getuser(),
            directory=self._directory,
            cpus=self._cpus,
        )
        (self._directory / "slurm.conf").write_text(content)
        for command in (["slurmctld", "-D"], ["slurmd", "-D", "-N", "node1"]):
            self._start(command)
        self._wait_for_node()
        return self

    def _start(self, command: list[str]) -> None:
        program = shutil.which(command[0], path=SEARCHED) or command[0]
        with (self._directory / f"{command[0]}.log").open("wb") as log:
            self._daemons.append(
                subprocess.Popen(
                    [program, *command[1:]], env=self.environment, stdout=log, stderr=log
                )
            )

    def __exit__(self, *_: object) -> None:
        for process in [*self._daemons, *self.processes()]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        for daemon in self._daemons:
            daemon.wait(LIMIT_S)

    def processes(self) -> list[psutil.Process]:
        """Returns the processes of the cluster and its jobs."""
        ours, found = self.environment["SLURM_CONF"], []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if process.environ().get("SLURM_CONF") == ours:
                    # slurmstepd, which watches a script on the node, hides its own environment.
                    watchers = [p for p in process.parents() if p.name() == "slurmstepd"]
                    found += [process, *watchers]
        return found

    def submit(self, *arguments: str) -> None:
        """Submits a job."""
        self._call("sbatch", *arguments)

    def wait_for_queue(self, *expected: str) -> None:
        """Waits until exactly these jobs are in the queue, each as "name STATE"."""
        deadline = time.monotonic() + LIMIT_S
        while sorted(queue := self._queue()) != sorted(expected):
            assert time.monotonic() < deadline, f"{queue}, expected {expected}"
            time.sleep(10 * POLL_S)

    def _queue(self) -> list[str]:
        return self._call("squeue", "--array", "--noheader", "--format=%j %T").splitlines()

    def _wait_for_node(self) -> None:
        deadline = time.monotonic() + LIMIT_S
        while "idle" not in (told := self._call("sinfo", "--noheader", "--format=%T")):
            assert time.monotonic() < deadline, told
            time.sleep(10 * POLL_S)

    def _call(self, *command: str) -> str:
        """Returns the output of one of Slurm's commands."""
        return subprocess.run(
            command,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,  # the daemons may still be starting
        ).stdout


class SlurmJob(ColdJob):
    """A job whose workers are an array job of Slurm, as a user would start it."""

    def __init__(
        self, cluster: Cluster, directory: Path, *flags: str, plan: list[faults.Fault]
    ) -> None:
        super().__init__(directory, *flags, plan=plan)
        self._cluster = cluster

    def start_launcher(self, *more_flags: str) -> None:
        """Runs the master here; it submits the array."""
        own = [flag for flag in self._arguments if not flag.startswith("--job_dir=")]
        self._temporary.mkdir(exist_ok=True)
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *("bash", str(DEPLOY / "master.sbatch"), str(self.job_dir)),
                    *(*self._command, *own, *more_flags),
                ],
                cwd=self.job_dir.parent,
                env={
                    **self._cluster.environment,
                    "PYTHON": sys.executable,
                    "TMPDIR": str(self._temporary),
                    "WORKERS": str(DEPLOY / "workers.sbatch"),
                    "SBATCH_ARRAY_INX": "0-1",
                    "SBATCH_PARTITION": "spare",
                    faults.FILE: str(self.plan.path),
                },
                stdout=output,
                stderr=subprocess.STDOUT,
            )
