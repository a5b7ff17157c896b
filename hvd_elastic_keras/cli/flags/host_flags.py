"""The flags of `run` that set on which hosts workers start, and how."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from absl import flags

from hvd_elastic_keras.common import host_port
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.launchers.base import LOCALHOST
from hvd_elastic_keras.launchers.discovery import Discovery, FixedHosts, HostFile, HostScript
from hvd_elastic_keras.launchers.hosts import Hosts, hosts_of_flag
from hvd_elastic_keras.launchers.ssh import SshSettings, Target, target_of
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.settings.job_config import JobConfig
from hvd_elastic_keras.settings.training_config import TrainingConfig
from hvd_elastic_keras.worker import network

HOSTS = flags.DEFINE_string(
    "hosts", None, "Start workers on other hosts by ssh, so many on each: a:2,b:4."
)
HOSTFILE = flags.DEFINE_string(
    "hostfile",
    None,
    "The same from a file with a line per host, such as `a slots=2` or `a:2`; it is read again "
    "when it changes.",
)
HOST_DISCOVERY_SCRIPT = flags.DEFINE_string(
    "host_discovery_script",
    None,
    "The same from a command that prints a line per host, `a:2` or `a`; it is run every second. "
    "Hosts may come and go.",
)
SSH_COMMAND = flags.DEFINE_string(
    "ssh_command", "ssh", "With hosts: the OpenSSH client with options, such as `ssh -p 2222`."
)
SSH_PYTHON = flags.DEFINE_string(
    "ssh_python", None, "With hosts: the Python interpreter there. Default: the path of this one."
)
REMOTE_DIR = flags.DEFINE_string(
    "remote_dir",
    None,
    "With hosts: the directory there in which workers start. Default: the path of this one.",
)
SSH_ENV = flags.DEFINE_list(
    "ssh_env",
    [],
    "With hosts: names of environment variables that workers there are to have as here; PYTHONPATH "
    "they have anyway.",
)
SOURCES = (HOSTS, HOSTFILE, HOST_DISCOVERY_SCRIPT)
ONLY_WITH_HOSTS = (SSH_COMMAND, SSH_PYTHON, REMOTE_DIR, SSH_ENV)
SLOTS_ARE_WORKERS = ("num_workers", "master_only")
SSH_ANSWERS_WITHIN_S = 10.0
"""Seconds to wait for an answer of ssh, whose configuration may run commands (`Match exec`)."""


@dataclasses.dataclass(frozen=True)
class HostsRequest:
    """The hosts on which workers are to start.

    Attributes:
      first: the hosts at the start of the job.
    """

    discovery: Discovery
    first: Hosts
    ssh: SshSettings

    def job_config(self, job: JobConfig) -> JobConfig:
        """Returns the configuration of a job that gets its slots from the hosts."""
        slots = sum(self.first.values())
        most = job.max_workers if flags.FLAGS["max_workers"].present else max(16, 2 * slots)
        return dataclasses.replace(job, num_workers=0, awaits_joiners=True, max_workers=most)

    def bind(self) -> str:
        """Returns the address at which the other hosts reach this one.

        Raises:
          ConfigurationError: the address is unknown, or none of the other hosts can be found.
        """
        others = [host for host in self.first if host != LOCALHOST]
        if not others:
            return network.own_address_to(LOCALHOST)
        targets = dict[str, Target]()
        for host in others:
            targets[host] = self._target(host)
            if found := network.own_address_to(targets[host].name):
                return found
        problems = [_problem(host, target) for host, target in targets.items()]
        if all(problems):
            raise ConfigurationError(
                f"No workers can be started on {', '.join(others)}: {'; '.join(problems)}. Check "
                "the names of the hosts."
            )
        raise ConfigurationError(
            f"The address of this host that {', '.join(others)} can reach is not known. Give it "
            f"with --bind: {network.shown(network.addresses())}."
        )

    def _target(self, host: str) -> Target:
        """Returns the address to which the user's ssh connects for a host."""
        answer = ""
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            answer = subprocess.run(
                self.ssh.question(host),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=SSH_ANSWERS_WITHIN_S,
                check=False,
            ).stdout
        return target_of(answer, host)


def _problem(host: str, target: Target) -> str:
    """Returns why a host cannot be found; empty if it can, or if other programs look it up."""
    try:
        if not target.by_others:
            host_port.found(target.name, 0)
    except OSError as error:
        by_ssh = "" if host.endswith(target.name) else f" ({target.name} in ssh's configuration)"
        return f"{host}{by_ssh} cannot be resolved: {error.strerror or error}"
    return ""


def check_batch_is_given(training: TrainingConfig, config: Mapping[str, Any]) -> None:
    """Raises `ConfigurationError` if the batch grows and the size per worker is not given."""
    name = "batch_size_per_worker"
    if training.batch_grows and not flags.FLAGS[name].present and not config.get(name):
        raise ConfigurationError(
            "--batch=per_worker was given together with hosts, whose number of workers may change. "
            f"Say with --{name} what each worker takes."
        )


def hosts_request() -> HostsRequest | None:
    """Returns the hosts that the flags ask for; None without such a flag.

    Raises:
      ConfigurationError: the flags exclude each other, or no hosts are found.
    """
    given = [flag for flag in SOURCES if flag.value]
    if not given:
        _refuse([f.name for f in ONLY_WITH_HOSTS], "without --hosts or its like. Add that")
        return None
    if len(given) > 1:
        names = " and ".join(f"--{flag.name}" for flag in given)
        raise ConfigurationError(f"{names} were given, expected one of them.")
    _refuse(SLOTS_ARE_WORKERS, f"with --{given[0].name}, which says how many workers there are")
    discovery = _discovery()
    return HostsRequest(discovery, discovery.hosts(), _settings())


def _discovery() -> Discovery:
    if HOSTS.value:
        return FixedHosts(hosts_of_flag(HOSTS.value))
    if HOSTFILE.value:
        return HostFile(Path(HOSTFILE.value).resolve())
    return HostScript(HOST_DISCOVERY_SCRIPT.value)


def _settings() -> SshSettings:
    return SshSettings(
        tuple(shlex.split(SSH_COMMAND.value)),
        SSH_PYTHON.value or sys.executable,
        REMOTE_DIR.value or str(Path.cwd()),
        env.variables_named(["PYTHONPATH"]).get("PYTHONPATH", ""),
        env.variables_named(SSH_ENV.value),
    )


def _refuse(names: tuple[str, ...] | list[str], why: str) -> None:
    present = [f"--{name}" for name in names if flags.FLAGS[name].present]
    if present:
        raise ConfigurationError(f"{', '.join(present)} was given {why}, or leave it out.")
