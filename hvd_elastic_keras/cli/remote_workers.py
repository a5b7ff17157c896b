"""Runs a job on other hosts or in pods, and follows which hosts the job has.

`HostWatch` grants and revokes slots, and lets failing hosts rest. `run_in_pods` creates the Secret
of the job and the launcher of the pods.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from hvd_elastic_keras.cli import leave_notices
from hvd_elastic_keras.cli.flags import join_flags
from hvd_elastic_keras.cli.flags.host_flags import HostsRequest
from hvd_elastic_keras.cli.flags.kubernetes_flags import PodsRequest
from hvd_elastic_keras.cli.job_request import JobRequest
from hvd_elastic_keras.common import control, files, protocol
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.launchers.base import Launcher
from hvd_elastic_keras.launchers.discovery import Discovery, LastKnownHosts
from hvd_elastic_keras.launchers.hosts import CoolDowns
from hvd_elastic_keras.launchers.kubernetes import KubernetesLauncher, Told
from hvd_elastic_keras.launchers.kubernetes_api import ApiError, put_secret
from hvd_elastic_keras.launchers.kubernetes_pod import TOKEN_FILE
from hvd_elastic_keras.launchers.ssh import RemoteStart, SshLauncher
from hvd_elastic_keras.master.controller import Controller
from hvd_elastic_keras.master.job_end import JobResult
from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.change_request import follow
from hvd_elastic_keras.master.machine.state import State
from hvd_elastic_keras.observe.console import Console
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.settings.job_config import JobConfig

SSH = "ssh"
"""Directory below `files.WORKERS` for notes about the running ssh clients."""

POLL_S = 1.0


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


class HostWatch:
    """Asks for the hosts of a job, and tells the state machine about changes.

    Args:
      now: the clock of the state machine.
    """

    def __init__(
        self,
        config: JobConfig,
        discovery: Discovery,
        *,
        state: Callable[[], State],
        dispatch: Callable[[act.Event], None],
        now: Callable[[], float],
    ) -> None:
        self._config = config
        self._discovery = discovery
        self._known: dict[str, int] | None = None
        """Slots by host that the state machine has been told of; None before the first time."""
        self._state = state
        self._dispatch = dispatch
        self._now = now
        self._cooling = CoolDowns()

    async def run(self, first: Mapping[str, int]) -> None:
        """Follows the hosts until it is cancelled, beginning with the hosts in `first`."""
        self.apply(first)
        try:
            while True:
                await asyncio.sleep(POLL_S)
                self.apply(await asyncio.to_thread(self._discovery.hosts))
        finally:
            self._discovery.close()

    def apply(self, wanted: Mapping[str, int]) -> None:
        """Changes the slots of the job to the `wanted` ones. Resting hosts get no more slots."""
        state = self._state()
        if state.stop or state.training.finishing:
            return
        if self._known is None:
            self._known = dict(state.slots)  # the slots of an earlier launcher
        self._note_those_that_work(state)
        usable = {h: self._usable(h, slots, self._known.get(h, 0)) for h, slots in wanted.items()}
        for event in follow(self._config, state, self._known, usable):
            self._dispatch(event)
        self._known = usable

    def failed(self, worker_id: str, host: str, reason: str) -> None:
        """Notes that a worker could not be started. Its host rests for a time."""
        state = self._state()
        if worker_id not in state.workers or self._known is None:
            return
        self._cooling = self._cooling.failed(host, self._now())
        pause_s = self._cooling.failing[host].until - self._now()
        before = state.slots[host]
        self._dispatch(act.HostFailed(worker_id, host, reason, pause_s))
        lost = before - self._state().slots[host]
        self._known[host] = max(0, self._known.get(host, 0) - lost)

    def _usable(self, host: str, slots: int, known: int) -> int:
        return min(slots, known) if self._cooling.rests(host, self._now()) else slots

    def _note_those_that_work(self, state: State) -> None:
        for worker in state.workers.values():
            failing = self._cooling.failing.get(worker.host)
            came = worker.last_heartbeat is not None
            if failing and came and worker.launched_at >= failing.until:
                self._cooling = self._cooling.works(worker.host)


async def run_in_pods(
    controller: Controller,
    local: Launcher,
    request: JobRequest,
    pods: PodsRequest,
    *,
    console: Console,
    training: dict[str, Any],
) -> JobResult:
    """Runs a job whose workers are pods.

    Raises:
      ConfigurationError: the cluster refuses the Secret of the job. No pod was created.
    """
    job_dir = request.job_dir
    endpoint = files.read_endpoint(job_dir)
    job_id, least = files.read_job_id(job_dir), request.job.min_workers
    settings = pods.settings(request.name, job_id, least)
    token = endpoint.for_joiners
    try:
        owner = await asyncio.to_thread(put_secret, pods.cluster, settings, token, pods.owner)
    except ApiError as error:
        raise ConfigurationError(str(error)) from error
    launcher = KubernetesLauncher(
        pods.cluster,
        settings,
        arguments=lambda worker_id: join_flags.of_announced_worker(
            endpoint.address,
            TOKEN_FILE,
            settings.pod_name(worker_id),
            worker_id,
            request.network_interface,
        ),
        owner=owner,
        log_dir=job_dir / files.LOGS,
        told=Told(
            pending=lambda worker_id, why: controller.dispatch(act.Pending(worker_id, why)),
            failed=lambda worker_id, why: controller.dispatch(act.LaunchFailed(worker_id, why)),
            leaving=lambda worker_id, why: controller.dispatch(
                protocol.Leaving(worker_id=worker_id, reason=why)
            ),
            people=console.line,
        ),
    )
    console.info(
        f"workers are pods {settings.pod_name('…')} in the namespace {settings.namespace}; what "
        f"they print: kubectl -n {settings.namespace} logs {settings.pod_name('w0')}"
    )
    launcher.start()
    return await controller.run(local, request.name, training, launcher)
