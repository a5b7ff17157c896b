"""Runs a job whose workers are pods: creates the Secret of the job and the launcher of the pods."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from hvd_elastic_keras.cli import join_flags
from hvd_elastic_keras.cli.job_request import JobRequest
from hvd_elastic_keras.cli.kubernetes_flags import PodsRequest
from hvd_elastic_keras.common import files, protocol
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.launchers.base import Launcher
from hvd_elastic_keras.launchers.kubernetes import KubernetesLauncher, Told
from hvd_elastic_keras.launchers.kubernetes_api import ApiError
from hvd_elastic_keras.launchers.kubernetes_pod import TOKEN_FILE
from hvd_elastic_keras.launchers.kubernetes_secret import put_secret
from hvd_elastic_keras.master.controller import Controller
from hvd_elastic_keras.master.job_result import JobResult
from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.observe.console import Console


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
    settings = pods.settings(request.name, _job_id(job_dir))
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


def _job_id(job_dir: Path) -> str:
    return (job_dir / files.JOB_ID).read_text().strip()
