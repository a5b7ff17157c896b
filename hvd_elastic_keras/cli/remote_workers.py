"""Runs a job on other hosts: starts workers there and follows which hosts the job has."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from hvd_elastic_keras.cli import join_flags, leave_notices
from hvd_elastic_keras.cli.host_flags import HostsRequest
from hvd_elastic_keras.cli.host_watch import HostWatch
from hvd_elastic_keras.cli.job_request import JobRequest
from hvd_elastic_keras.cli.pod_workers import run_in_pods
from hvd_elastic_keras.common import control, env, files
from hvd_elastic_keras.common.config import JobConfig
from hvd_elastic_keras.launchers.base import Launcher
from hvd_elastic_keras.launchers.discovery import LastKnownHosts
from hvd_elastic_keras.launchers.ssh import SshLauncher
from hvd_elastic_keras.launchers.ssh_command import RemoteStart
from hvd_elastic_keras.master.controller import Controller
from hvd_elastic_keras.master.job_result import JobResult
from hvd_elastic_keras.observe.console import Console

SSH = "ssh"
"""Directory below `files.WORKERS` for notes about the running ssh clients."""


async def run_on_hosts(
    controller: Controller,
    local: Launcher,
    request: JobRequest,
    console: Console,
    training: dict[str, Any],
) -> JobResult:
    """Runs a job on the requested hosts or in the requested pods; without either, on this host."""
    if request.pods:
        return await run_in_pods(
            controller, local, request, request.pods, console=console, training=training
        )
    if request.hosts is None:
        return await controller.run(local, request.name, training)
    remote = RemoteWorkers(
        request.hosts,
        request.job,
        request.job_dir,
        console,
        controller,
        endpoint=files.read_endpoint(request.job_dir),
        interface=request.network_interface,
    )
    async with remote.followed():
        return await controller.run(local, request.name, training, remote.launcher)


class RemoteWorkers:
    """Starts workers on the hosts of a job, and follows the set of hosts while the job runs.

    Args:
      endpoint: endpoint of the master, as other hosts reach it.
      interface: network interface to use on all hosts; empty: each host finds its own.
    """

    def __init__(
        self,
        request: HostsRequest,
        job: JobConfig,
        job_dir: Path,
        console: Console,
        controller: Controller,
        *,
        endpoint: control.Endpoint,
        interface: str = "",
    ) -> None:
        self._request = request
        self._endpoint = endpoint
        self._interface = interface
        self._patience_s = job.enter_timeout_s
        """Seconds after which a worker that has not come is given up and stops its search."""
        self._job_dir = job_dir
        self._console = console
        self._controller = controller
        self._watch = HostWatch(
            job,
            LastKnownHosts(request.discovery, request.first, self._warn),
            state=lambda: controller.state,
            dispatch=controller.dispatch,
            now=controller.now,
        )
        self.launcher = SshLauncher(
            request.ssh,
            job_dir / files.LOGS,
            job_dir / files.WORKERS / SSH,
            environment=self._of_client,
            start=self._start,
            on_output=controller.on_output,
            has_come=self._has_come,
            on_failed=self._watch.failed,
        )

    @contextlib.asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        """Follows the hosts, and their slots, inside of the block.

        The watch starts at the next `await`.
        """
        watching = asyncio.create_task(self._watch.run(self._request.first))
        watching.add_done_callback(self._tell_failure)
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.wait([watching])

    def _tell_failure(self, watching: asyncio.Task[None]) -> None:
        """Warns if nothing follows the hosts any more; the job goes on with the hosts it has."""
        if not watching.cancelled() and watching.exception():
            self._warn(f"hosts are not followed any more: {watching.exception()!r}")

    def _warn(self, text: str) -> None:
        self._console.line(f"warning: {text}")

    def _of_client(self, worker_id: str) -> env.WorkerEnvironment:
        return env.WorkerEnvironment(self._endpoint.address, "", worker_id, str(self._job_dir))

    def _start(self, worker_id: str, host: str) -> RemoteStart:
        address, interface = self._endpoint.address, self._interface
        arguments = [
            *join_flags.of_announced_worker(address, "-", host, worker_id, interface),
            f"--join_timeout_s={self._patience_s:g}",
            *leave_notices.as_flag(),
        ]
        variables = dict(self._request.ssh.variables)
        return RemoteStart(arguments, self._endpoint.for_joiners, variables)

    def _has_come(self, worker_id: str) -> bool:
        worker = self._controller.state.workers.get(worker_id)
        return worker is None or worker.last_heartbeat is not None
