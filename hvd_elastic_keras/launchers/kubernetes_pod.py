"""The manifest of the pod of a worker. Pure: manifests are JSON without secrets."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from hvd_elastic_keras.common.errors import ConfigurationError

Json = dict[str, Any]
JOB_LABEL = "hvd-elastic-keras/job-id"
JOB_NAME_LABEL = "hvd-elastic-keras/job-name"
WORKER_LABEL = "hvd-elastic-keras/worker"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
GROUP_LABEL = "kueue.x-k8s.io/pod-group-name"
GROUP_SIZE = "kueue.x-k8s.io/pod-group-total-count"
"""Annotation of the pods of a group."""
GROUP_IS_OVER = {"kueue.x-k8s.io/retriable-in-group": "false"}
"""Annotation by which a pod tells Kueue that no pod of its group will be replaced any more."""
APP_LABELS = {"app.kubernetes.io/name": "hvd-elastic-keras"}
CONTAINER = "worker"
TOKEN_VOLUME = "hvd-elastic-token"
TOKEN_DIRECTORY = "/var/run/hvd-elastic"
TOKEN_KEY = "token"
TOKEN_FILE = f"{TOKEN_DIRECTORY}/{TOKEN_KEY}"
MOST_NAME_CHARACTERS = 50
"""Longest name of a job. A pod's name is also its host name, and may have 63 characters."""
PARTS = ("apiVersion", "kind", "metadata", "spec")
"""What a template may consist of."""
PARTS_OF_METADATA = ("labels", "annotations")
OUR_LABELS = (JOB_LABEL, JOB_NAME_LABEL, WORKER_LABEL, QUEUE_LABEL, GROUP_LABEL, *APP_LABELS)
OURS = ("restartPolicy", "terminationGracePeriodSeconds", "serviceAccountName")
"""Fields of a pod's specification that flags or this program decide."""
OURS_OF_CONTAINER = ("args", "image")
JOINED_BY_NAME = ("containers", "volumes", "volumeMounts")
"""Lists of a template that are merged entry by entry."""


@dataclasses.dataclass(frozen=True)
class PodGroup:
    """Pods that a queue of Kueue admits together, or not at all.

    See https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods.

    Attributes:
      name: name of the group, which is that of its Workload. Each start of a job needs another one,
        because a Workload that has finished admits no pods.
      size: number of its pods. Kueue deletes further ones.
    """

    name: str
    size: int

    @property
    def metadata(self) -> Json:
        """What a pod of the group has in its metadata."""
        return {"labels": {GROUP_LABEL: self.name}, "annotations": {GROUP_SIZE: str(self.size)}}


@dataclasses.dataclass(frozen=True)
class PodSettings:
    """The settings that the pods of a job have in common.

    Attributes:
      job: prefix of the names of all pods, and name of the Secret with the token.
      template: a pod with `metadata` and `spec`, for all fields that these settings do not give.
      queue: queue of Kueue; empty for none.
      group_size: number of workers that the queue admits together; below 2, it admits each alone.
      grace_period_s: seconds that a worker may take to leave when its pod is deleted.
    """

    job: str
    job_id: str
    image: str
    namespace: str
    service_account: str = ""
    queue: str = ""
    group_size: int = 0
    grace_period_s: int = 60
    template: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def pod_name(self, worker_id: str) -> str:
        """Returns the name of the pod of a worker, the same for every master of the job."""
        return f"{self.job}-{worker_id}"

    def group(self, secret: Json) -> PodGroup | None:
        """Returns the group of the first pods; None if the queue admits each pod alone.

        Args:
          secret: reference to the Secret of the job, which each start of the job makes anew.
        """
        if not self.queue or self.group_size < 2:
            return None
        return PodGroup(f"{self.job}-{secret['uid'][:8]}", self.group_size)

    @property
    def selector(self) -> str:
        """The label selector that finds the pods of this job."""
        return f"{JOB_LABEL}={self.job_id}"

    @property
    def job_labels(self) -> dict[str, str]:
        """The labels of all objects of this job."""
        return {**APP_LABELS, JOB_NAME_LABEL: self.job, JOB_LABEL: self.job_id}

    def labels(self, worker_id: str) -> dict[str, str]:
        """Returns the labels of the pod of a worker."""
        queue = {QUEUE_LABEL: self.queue} if self.queue else {}
        return {**self.job_labels, WORKER_LABEL: worker_id, **queue}


def job_name(name: str, job_id: str) -> str:
    """Returns a name that Kubernetes accepts and no other job has.

    >>> job_name("My_model", "0123456789abcdef")
    'my-model-01234567'
    """
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "job"
    plain = plain if plain[0].isalpha() else f"j-{plain}"
    return f"{plain[: MOST_NAME_CHARACTERS - 9].strip('-')}-{job_id[:8]}"


def check_job_name(name: str, flag: str = "--job_name") -> None:
    """Raises `ConfigurationError` if pods cannot have this name, which the flag gives."""
    if len(name) > MOST_NAME_CHARACTERS or not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
        raise ConfigurationError(
            f"{flag}={name} was given, expected at most {MOST_NAME_CHARACTERS} small letters, "
            "digits and hyphens that begin with a letter, as in mnist-1."
        )


def check_template(template: object) -> Json:
    """Returns a template as a pod with `metadata` and `spec`.

    Args:
      template: a whole Pod, what a PodTemplate has below `template`, or only a Pod's `spec`.

    Raises:
      ConfigurationError: the template is no pod, or has a field that is not allowed.
    """
    whole = _as_pod(template)
    metadata, spec = whole["metadata"], whole["spec"]
    _check_lists(spec)
    refused = [name for name in whole if name not in PARTS]
    refused += [name for name in OURS if name in spec]
    refused += [f"{CONTAINER}.{n}" for n in OURS_OF_CONTAINER if n in _worker_of(spec)]
    refused += [f"metadata.{name}" for name in metadata if name not in PARTS_OF_METADATA]
    refused += [f"the label {name}" for name in metadata.get("labels") or {} if name in OUR_LABELS]
    if refused:
        raise ConfigurationError(
            f"--pod_template has {', '.join(refused)}, which the launcher decides. Leave it out. "
            "There are --job_name, --namespace, --queue, --image, --grace_period_s and "
            "--service_account; `metadata` may have labels and annotations."
        )
    return {"metadata": metadata, "spec": spec}


def _as_pod(template: object) -> Json:
    """Returns a template with `metadata` and `spec`, and with all else that it has.

    Raises:
      ConfigurationError: a part has another type, or the template is of another kind.
    """
    whole: Json = {"spec": template}
    if isinstance(template, dict) and not template.keys().isdisjoint(PARTS):
        whole = {"spec": {}, **template}
    whole["metadata"] = whole.get("metadata") or {}
    parts = {"metadata": whole["metadata"], "spec": whole["spec"]}
    if isinstance(whole["metadata"], dict):
        parts |= {f"metadata.{n}": whole["metadata"].get(n) or {} for n in PARTS_OF_METADATA}
    for name, part in parts.items():
        if not isinstance(part, dict):
            raise ConfigurationError(
                f"--pod_template has {type(part).__name__} as {name}, expected the specification "
                "of a pod: what stands below `spec` of a Pod, or a Pod with `metadata` and `spec`."
            )
    if whole.get("kind", "Pod") != "Pod":
        raise ConfigurationError(
            f"--pod_template has a {whole['kind']}, expected a Pod. Give what stands below "
            "`template` of it."
        )
    return whole


def _check_lists(part: Json) -> None:
    """Raises `ConfigurationError` if entries cannot be merged by their names."""
    for name in JOINED_BY_NAME:
        entries = part.get(name) or []
        wrong = [e for e in [entries, *entries] if not isinstance(e, (dict, list))]
        if wrong or not all(isinstance(e, dict) and "name" in e for e in entries):
            found = type(wrong[0]).__name__ if wrong else "an entry without a name"
            raise ConfigurationError(
                f"--pod_template has {found} in {name}, expected a list whose entries have names."
            )
        for entry in entries if name == "containers" else ():
            _check_lists(entry)


def manifest(
    settings: PodSettings,
    worker_id: str,
    arguments: list[str],
    owner: Json | None,
    group: PodGroup | None = None,
) -> Json:
    """Returns the manifest of a pod that runs `hvd_elastic_keras.run` with `arguments`.

    Args:
      owner: reference to the object with which the pod is deleted.
      group: the group that the pod belongs to, if any.
    """
    metadata: Json = {
        "name": settings.pod_name(worker_id),
        "namespace": settings.namespace,
        "labels": settings.labels(worker_id),
    }
    if owner:
        metadata["ownerReferences"] = [owner]
    if group:
        metadata = merged(metadata, group.metadata)
    ours = {"metadata": metadata, "spec": _spec(settings, arguments)}
    return {"apiVersion": "v1", "kind": "Pod", **merged(settings.template, ours)}


def owner_reference(owner: Json, kind: str) -> Json:
    """Returns a reference by which an object is deleted together with its owner."""
    metadata = owner["metadata"]
    return {
        "apiVersion": "v1",
        "kind": kind,
        "name": metadata["name"],
        "uid": metadata["uid"],
    }


def merged(template: Any, ours: Any) -> Any:
    """Merges our values into a template: objects field by field, named lists entry by entry."""
    result = dict(template)
    for key, value in ours.items():
        if key in JOINED_BY_NAME:
            result[key] = _merged_entries(result.get(key) or [], value)
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = merged(result[key], value)
        else:
            result[key] = value
    return result


def _merged_entries(template: list[Json], ours: list[Json]) -> list[Json]:
    by_name = {entry["name"]: entry for entry in template}
    for entry in ours:
        by_name[entry["name"]] = merged(by_name.get(entry["name"], {}), entry)
    return list(by_name.values())


def _worker_of(spec: Json) -> Json:
    containers = spec.get("containers") or []
    return next((c for c in containers if c.get("name") == CONTAINER), {})


def _spec(settings: PodSettings, arguments: list[str]) -> Json:
    template = settings.template.get("spec", {})
    given = _worker_of(template)
    container = {
        "name": CONTAINER,
        "image": settings.image,
        "command": given.get("command", ["python"]),
        "args": ["-m", "hvd_elastic_keras.run", *arguments],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": TOKEN_VOLUME, "mountPath": TOKEN_DIRECTORY, "readOnly": True}],
    }
    spec: Json = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": settings.grace_period_s,
        "containers": [container],
        "volumes": [{"name": TOKEN_VOLUME, "secret": {"secretName": settings.job}}],
    }
    if settings.service_account:
        spec["serviceAccountName"] = settings.service_account
    if "automountServiceAccountToken" not in template:
        spec["automountServiceAccountToken"] = False  # a worker asks nothing of the cluster
    return spec


def belongs_to(settings: PodSettings, worker_id: str, pod: Json) -> bool:
    """Returns whether a pod belongs to this worker of this job."""
    return (label(pod, JOB_LABEL), label(pod, WORKER_LABEL)) == (settings.job_id, worker_id)


def label(found: Json, name: str) -> str:
    """Returns a label of an object; empty if it has none of this name."""
    return str((found["metadata"].get("labels") or {}).get(name, ""))
