"""The flags of `run` that start workers as pods of a Kubernetes cluster."""

from __future__ import annotations

import dataclasses
import secrets
from pathlib import Path

import yaml
from absl import flags

from hvd_elastic_keras.cli.flags import host_flags, job_flags, join_flags
from hvd_elastic_keras.common import host_port
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.launchers.kubernetes_api import (
    ApiError,
    Cluster,
    Json,
    connect,
    owner_of_master,
)
from hvd_elastic_keras.launchers.kubernetes_pod import (
    PodSettings,
    check_job_name,
    check_template,
    job_name,
    manifest,
)
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.settings.job_config import JobConfig
from hvd_elastic_keras.settings.options import AUTO

LOCAL, KUBERNETES = "local", "kubernetes"
LAUNCHER = flags.DEFINE_enum(
    "launcher",
    LOCAL,
    [LOCAL, KUBERNETES],
    "Where workers are started: as processes of this machine (and of --hosts), or as pods of the "
    "Kubernetes cluster that this command runs in or that the kubeconfig names.",
)
IMAGE = flags.DEFINE_string(
    "image", None, "With --launcher=kubernetes: the image of the workers, with the same source."
)
JOB_NAME = flags.DEFINE_string(
    "job_name",
    None,
    "With --launcher=kubernetes: begins the names of the pods. Default: the model's name with the "
    "job's id.",
)
NAMESPACE = flags.DEFINE_string(
    "namespace",
    "",
    "With --launcher=kubernetes: where the pods are. Default: that of the master's pod, or of the "
    "kubeconfig's context.",
)
SERVICE_ACCOUNT = flags.DEFINE_string(
    "service_account", "", "With --launcher=kubernetes: of the workers, which need no rights."
)
POD_TEMPLATE = flags.DEFINE_string(
    "pod_template",
    None,
    "With --launcher=kubernetes: a YAML file with a pod that is merged with those of the workers: "
    "resources, volumes, node selector, tolerations, priority class, environment, labels and "
    "annotations. Its container `worker` is that of the worker.",
)
QUEUE = flags.DEFINE_string(
    "queue",
    "",
    "With --launcher=kubernetes: the local queue of Kueue that admits the pods: the first "
    "--min_workers together, further ones singly.",
)
GRACE_PERIOD_S = flags.DEFINE_integer(
    "grace_period_s",
    60,
    "With --launcher=kubernetes: seconds in which a worker whose pod is deleted may finish its "
    "step and leave.",
    lower_bound=1,
)
MASTER_HOST = flags.DEFINE_string(
    "master_host",
    "",
    "With --launcher=kubernetes: the name by which pods reach the master, such as that of a "
    "Service, if its pod may be replaced; with --port. Default: the address of this host.",
)
ONLY_WITH_PODS = (
    *(IMAGE, JOB_NAME, NAMESPACE, SERVICE_ACCOUNT, POD_TEMPLATE, QUEUE, GRACE_PERIOD_S),
    MASTER_HOST,
)
RIGHTS = (
    ("pods", ("create", "get", "list", "watch", "delete"), False),
    ("secrets", ("create",), False),
    ("secrets", ("get", "patch", "delete"), True),
)
"""All rights that the launcher needs: resources, verbs, and whether only the object with the name
of the job is meant. deploy/kubernetes/rbac.yaml grants them."""
RIGHTS_WITH_QUEUE = (("pods", ("patch",), False),)
"""Rights that the launcher needs as well if a queue admits groups of pods."""


@dataclasses.dataclass(frozen=True)
class PodsRequest:
    """The pods that the command line asks for.

    Attributes:
      name: prefix of the names of the pods; empty: derived from the job.
      owner: the owner of the pods, if the master runs in a pod.
      master_host: name by which pods reach the master; empty: the address of this host.
    """

    cluster: Cluster
    image: str
    name: str = ""
    service_account: str = ""
    template: Json = dataclasses.field(default_factory=dict)
    queue: str = ""
    grace_period_s: int = 60
    owner: Json | None = None
    master_host: str = ""

    def settings(self, name: str, job_id: str, min_workers: int = 1) -> PodSettings:
        """Returns the settings of the pods of a job that trains with `min_workers` or more."""
        return PodSettings(
            job=self.name or job_name(name, job_id),
            job_id=job_id,
            image=self.image,
            namespace=self.cluster.namespace,
            service_account=self.service_account,
            queue=self.queue,
            group_size=min_workers,
            grace_period_s=self.grace_period_s,
            template=self.template,
        )

    def job_config(self, job: JobConfig) -> JobConfig:
        """Returns the configuration of a job, changed for workers that are pods."""
        return dataclasses.replace(job, own_machines=True, awaits_joiners=False)

    def bind(self) -> str:
        """Returns the address at which the master listens by default."""
        return host_port.ANY_IPV4


def pods_request() -> PodsRequest | None:
    """Returns the pods that the flags ask for; None if workers are not pods.

    Raises:
      ConfigurationError: a flag is missing or the cluster refuses. Nothing was started.
    """
    if LAUNCHER.value == LOCAL:
        given = [f"--{f.name}" for f in ONLY_WITH_PODS if flags.FLAGS[f.name].present]
        if given:
            raise ConfigurationError(
                f"{', '.join(given)} was given without --launcher=kubernetes. Add that, or leave "
                "it out."
            )
        return None
    _refuse_what_others_start()
    if not IMAGE.value:
        raise ConfigurationError(
            "--launcher=kubernetes was given without --image. Give the image that workers run: "
            "with this package, and the source of the model or script."
        )
    if JOB_NAME.value:
        check_job_name(JOB_NAME.value)
    if MASTER_HOST.value and not join_flags.PORT.value:
        raise ConfigurationError(
            f"--master_host={MASTER_HOST.value} was given without --port. Give the port that the "
            "Service leads to."
        )
    template = _template(POD_TEMPLATE.value) if POD_TEMPLATE.value else {}
    request = PodsRequest(
        connect(NAMESPACE.value, in_cluster=env.in_cluster()),
        IMAGE.value,
        name=JOB_NAME.value or "",
        service_account=SERVICE_ACCOUNT.value,
        template=template,
        queue=QUEUE.value,
        grace_period_s=GRACE_PERIOD_S.value,
        master_host=MASTER_HOST.value,
    )
    try:
        check_cluster(request)
        owner = owner_of_master(request.cluster, env.pod_name()) if env.pod_name() else None
    except ApiError as error:
        raise ConfigurationError(
            f"--launcher=kubernetes was given, but the cluster at {request.cluster.host} refuses: "
            f"{error}. Is it the one of the kubeconfig's current context?"
        ) from error
    return dataclasses.replace(request, owner=owner)


def check_cluster(request: PodsRequest) -> None:
    """Asks the API server whether the pods may be created. Creates none.

    Raises:
      ConfigurationError: a right is missing, or the pods would be refused.
      ApiError: the API server does not answer.
    """
    cluster = request.cluster
    missing = [
        f"{verb} {resource}"
        for resource, verbs, by_name in (*RIGHTS, *(RIGHTS_WITH_QUEUE if request.queue else ()))
        for verb in verbs
        if not cluster.may(verb, resource, request.name if by_name else "")
    ]
    if missing:
        raise ConfigurationError(
            f"This account may not {', '.join(missing)} in the namespace {cluster.namespace}. Ask "
            "for a role with these verbs: `ctl manifests` writes one, rbac.yaml. If the role names "
            "Secrets, give one of these names with --job_name."
        )
    trial = f"trial-{secrets.token_hex(8)}"
    settings = dataclasses.replace(request.settings(trial, trial), job=trial)
    try:
        cluster.create("pods", manifest(settings, "w0", [], None), dry_run=True)
    except ApiError as error:
        if "exceeded quota" not in str(error):  # a full quota only means to wait
            raise ConfigurationError(
                f"The cluster refuses the pods of the workers in the namespace "
                f"{cluster.namespace}: {error}. See --image, --namespace, --service_account and "
                "--pod_template."
            ) from error


def _refuse_what_others_start() -> None:
    others = (*host_flags.SOURCES, join_flags.MASTER_ONLY)
    given = [f"--{f.name}" for f in others if f.value]
    if given:
        raise ConfigurationError(
            f"{', '.join(given)} was given together with --launcher=kubernetes, which starts "
            "--num_workers pods. Leave one of them out."
        )
    if job_flags.JOB_FLAGS["num_workers"].value == AUTO:
        raise ConfigurationError(
            "--num_workers=auto was given, which counts the processors of this host, together with "
            "--launcher=kubernetes, whose pods run elsewhere. Give a number."
        )


def _template(path: str) -> Json:
    """Reads the specification of a pod from a YAML file.

    Raises:
      ConfigurationError: the file cannot be read, or holds something else.
    """
    try:
        content = yaml.safe_load(Path(path).read_text())
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        raise ConfigurationError(
            f"--pod_template={path} cannot be read: {error}. Give a YAML file with the "
            "specification of a pod."
        ) from error
    return check_template(content)
