"""The job that the command line asks for; checks whether its workers fit the cut of a batch."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hvd_elastic_keras.cli.checks import machine
from hvd_elastic_keras.cli.flags.host_flags import HostsRequest
from hvd_elastic_keras.cli.flags.kubernetes_flags import PodsRequest
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.launchers.base import LOCALHOST
from hvd_elastic_keras.observe.console import Verbosity, counted
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.settings.job_config import JobConfig
from hvd_elastic_keras.settings.job_options import NOTHING_ASKED, JobOptions
from hvd_elastic_keras.settings.job_spec import JobSpec
from hvd_elastic_keras.settings.options import RunOptions


def worker_command(script: Sequence[str]) -> list[str]:
    """Returns the command of a worker, for a script with arguments or, if empty, for a model."""
    if not script:
        return [sys.executable, "-m", "hvd_elastic_keras.cli.worker_main"]
    return [sys.executable, str(Path(__file__).with_name("script_main.py")), *script]


@dataclasses.dataclass(frozen=True)
class MasterRequest:
    """How workers and `ctl` reach the master.

    Attributes:
      bind: an address of this host, or 0.0.0.0 for all of them.
      port: port to listen at; 0: a free port.
      given_out: address by which workers reach this host, if it is not `bind`.
      tls: whether they speak to the master through TLS.
      token: token of the job; empty: a new one.
    """

    bind: str = "127.0.0.1"
    port: int = 0
    given_out: str = ""
    tls: bool = False
    token: str = dataclasses.field(default="", repr=False)


@dataclasses.dataclass(frozen=True)
class OutputRequest:
    """What people see of a job, while it runs and afterwards.

    Attributes:
      timeline: file for a trace of the whole job.
      dashboard: whether the address of the dashboard is shown.
      report: whether the job's report is written at its end.
      all_output: whether the lines of all workers are shown, not only those of one.
    """

    timeline: Path | None = None
    dashboard: bool = False
    report: bool = False
    all_output: bool = False
    verbosity: Verbosity = Verbosity.NORMAL


@dataclasses.dataclass(frozen=True)
class CommandLine:
    """The command line that asks for a job.

    Attributes:
      words: its words without the job directory.
      sources: by flag, the source of its value in `words`.
      warnings: warnings about it.
    """

    words: tuple[str, ...] = ()
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class JobRequest:
    """The job that the command line asks for: a model (`spec`) or a script with its arguments."""

    job: JobConfig
    spec: JobSpec | None
    script: list[str]
    job_dir: Path
    name: str
    output: OutputRequest = OutputRequest()
    asked: JobOptions = NOTHING_ASKED
    """Options that the job asks of its trainings."""
    network_interface: str = ""
    """Network interface between the workers; empty: the one that leads to the master."""
    command: CommandLine = CommandLine()
    master: MasterRequest = MasterRequest()
    hosts: HostsRequest | None = None
    """Hosts on which workers start; None: only this one."""
    pods: PodsRequest | None = None
    """Pods that are the workers; None if workers are processes of hosts."""
    seed: int | None = None
    """The seed that the command line gives to the job of a script; a model's is in `spec`."""
    found_micro_batch_size: int = 0
    """The micro-batch size that the check of the model chose; 0 before it, and for a script."""

    @property
    def started_here(self) -> int:
        """Number of workers that start on this host at first."""
        if self.hosts:
            return self.hosts.first.get(LOCALHOST, 0)
        return 0 if self.pods else self.job.num_workers

    @property
    def options(self) -> RunOptions:
        """The options that count. A script, which has not run yet, may ask for more."""
        return self.asked.with_script()

    @property
    def worker_command(self) -> list[str]:
        """The command of a worker."""
        return worker_command(self.script)

    @property
    def worker_variables(self) -> dict[str, str]:
        """Environment variables that are the same for all workers of this host."""
        fixed = self.options.deterministic
        return env.worker_variables(self.threads_per_worker, keeps_threads=fixed)

    @property
    def micro_batch_size(self) -> int:
        """Examples per forward and backward pass; 0 while unknown."""
        given = self.spec.training.micro_batch_size if self.spec else 0
        return given or self.found_micro_batch_size

    @property
    def num_micro_batches(self) -> int | None:
        """Micro-batches of a global batch, or per worker if the batch grows; None while unknown."""
        if self.spec is None or not self.micro_batch_size:
            return None
        return -(-self.spec.training.cut_batch_size // self.micro_batch_size)

    @property
    def cut(self) -> str:
        """The cut of a batch, for people."""
        count = self.num_micro_batches
        return f"{count} micro-batch{'' if count == 1 else 'es'} of {self.micro_batch_size}"

    @property
    def workers_of_start(self) -> int:
        """Number of workers that the launcher starts first, on this host or others."""
        if self.hosts is None:
            return self.job.num_workers
        return min(self.job.max_workers, sum(self.hosts.first.values()))

    @property
    def workers_here(self) -> int:
        """Number of first workers that share the processors of this host."""
        return self.most_members if self.hosts is None else self.hosts.first.get(LOCALHOST, 0)

    @property
    def threads_per_worker(self) -> int:
        """Threads of one operation; the workers share the processors of this host."""
        if self.options.deterministic:
            return self.options.deterministic_threads
        return max(1, machine.processors() // max(1, self.workers_here))

    @property
    def most_members(self) -> int:
        """Number of first workers that have something to compute, as far as is known."""
        useful = self.num_micro_batches
        if useful is None or (self.spec and self.spec.training.batch_grows):
            return self.workers_of_start
        return min(self.workers_of_start, useful)

    def check_workers_fit(self) -> None:
        """Refuses a job that needs more workers than there are micro-batches.

        Workers beyond the micro-batches are spares, so such a job would never begin.

        Raises:
          ConfigurationError: this is such a job, as far as is known.
        """
        useful = self.num_micro_batches
        if self.spec is None or useful is None or self.spec.training.batch_grows:
            return
        if self.job.min_workers > useful:
            training = self.spec.training
            size, needed = training.global_batch_size, self.job.min_workers
            finer = next(m for m in range(max(1, size // needed), 0, -1) if size % m == 0)
            raise ConfigurationError(
                f"min_workers={needed} was given, but a global batch of {size} is cut into only "
                f"{self.cut}, so that no more than {counted(useful, 'worker')} can train at a "
                f"time. Use --micro_batch_size={finer}."
            )
