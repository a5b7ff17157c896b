"""The Secret of a job: it holds the token, and owns all pods, so that no pod outlives it."""

from __future__ import annotations

import base64

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.launchers.kubernetes_api import ALREADY_EXISTS, ApiError, Cluster, Json
from hvd_elastic_keras.launchers.kubernetes_pod import (
    APP_LABELS,
    JOB_LABEL,
    TOKEN_KEY,
    PodSettings,
    owner_reference,
)


def put_secret(cluster: Cluster, settings: PodSettings, token: str, owner: Json | None) -> Json:
    """Creates the Secret, or takes over the Secret of an earlier launcher of the job.

    Returns:
      The owner reference by which pods name the Secret as their owner.

    Raises:
      ConfigurationError: a Secret of this name belongs to another job.
      ApiError: the Secret cannot be created.
    """
    content = {TOKEN_KEY: base64.b64encode(token.encode()).decode()}
    metadata: Json = {"name": settings.job, "labels": {**APP_LABELS, JOB_LABEL: settings.job_id}}
    if owner:
        metadata["ownerReferences"] = [owner]
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": content}
    try:
        secret = cluster.create("secrets", body)
    except ApiError as error:
        if error.status != ALREADY_EXISTS:
            raise
        _check_ours(cluster.read("secrets", settings.job), settings)
        secret = cluster.change("secrets", settings.job, {"metadata": metadata, "data": content})
    return owner_reference(secret, "Secret")


def _check_ours(secret: Json, settings: PodSettings) -> None:
    job_id = (secret["metadata"].get("labels") or {}).get(JOB_LABEL)
    if job_id != settings.job_id:
        whose = f"of job {job_id}" if job_id else "that is not of this program"
        raise ConfigurationError(
            f"There is a Secret {settings.job} {whose} in the namespace {settings.namespace}, and "
            f"this is job {settings.job_id}. Give another --job_name, or go on with that job in "
            "its own --job_dir."
        )


def owner_of_master(cluster: Cluster, pod_name: str) -> Json:
    """Returns the owner of a job whose master runs in a pod.

    The owner is the controller of this pod or, without a controller, the pod itself. So if a
    StatefulSet replaces the pod of its master, the workers are kept.
    """
    pod = cluster.read("pods", pod_name)
    owners = pod["metadata"].get("ownerReferences") or []
    kept_up_by = next((o for o in owners if o.get("controller")), None)
    if kept_up_by is None:
        return owner_reference(pod, "Pod")
    return {key: kept_up_by[key] for key in ("apiVersion", "kind", "name", "uid")}
