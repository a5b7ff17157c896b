"""The few requests of the launcher to a Kubernetes API server, in JSON.

The official client finds the cluster and signs in (pods, kubeconfig, and plug-ins of providers).
Requests are our own, because the client's models refuse fields that are newer or older than the
client.

`put_secret` creates the Secret of a job: it holds the token, and owns all pods, so that no pod
outlives it.
"""

from __future__ import annotations

import base64
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import requests

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.launchers.kubernetes_pod import (
    JOB_LABEL,
    TOKEN_KEY,
    PodSettings,
    label,
    owner_reference,
)

Json = dict[str, Any]
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
TIMEOUT_S = (5.0, 30.0)
"""Seconds to connect, and seconds to wait for an answer."""
ALREADY_EXISTS, GONE, NOT_FOUND, INVALID = 409, 410, 404, (400, 422)
MERGE_PATCH = "application/merge-patch+json"


class ApiError(Exception):
    """The API server has refused a request, or has not answered (then `status` is 0)."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status

    @property
    def is_hopeless(self) -> bool:
        """Whether the same request would be refused again, whatever happens in the cluster."""
        return self.status in INVALID


class Cluster:
    """Requests for the objects of one namespace.

    Args:
      configuration: configuration of the official client.
    """

    def __init__(self, configuration: Any, namespace: str) -> None:
        self.namespace = namespace
        self.host: str = configuration.host
        self._session = requests.Session()
        self._session.auth = _SignedIn(configuration)
        authority = configuration.ssl_ca_cert or True
        self._verify = authority if configuration.verify_ssl else False
        if configuration.cert_file:
            self._session.cert = (configuration.cert_file, configuration.key_file)

    def create(self, kind: str, body: Json, *, dry_run: bool = False) -> Json:
        """Creates an object; with `dry_run`, only checks whether that is possible."""
        return self._ask("POST", kind, body=body, query={"dryRun": "All"} if dry_run else {})

    def read(self, kind: str, name: str, group: str = "") -> Json:
        """Reads an object."""
        return self._ask("GET", f"{kind}/{name}", group=group)

    def change(self, kind: str, name: str, body: Json) -> Json:
        """Changes fields of an object."""
        return self._ask("PATCH", f"{kind}/{name}", body=body)

    def delete(self, kind: str, name: str, grace_s: int | None = None) -> None:
        """Deletes an object, if any. A pod may take `grace_s` seconds, else its own grace time."""
        body = {"propagationPolicy": "Background"}
        grace = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
        try:
            self._ask("DELETE", f"{kind}/{name}", body={**body, **grace})
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise

    def pods(self, selector: str) -> tuple[list[Json], str]:
        """Returns the pods with these labels, and the version from which to watch."""
        found = self._ask("GET", "pods", query={"labelSelector": selector})
        return found["items"], found["metadata"]["resourceVersion"]

    def watch_pods(self, selector: str, version: str, limit_s: int) -> Iterator[tuple[str, Json]]:
        """Yields the changes of pods since a version: ADDED, MODIFIED or DELETED, and the pod.

        Raises:
          ApiError: the version is too old (410), or the connection is lost.
        """
        query = {
            **{"labelSelector": selector, "resourceVersion": version},
            **{"watch": "1", "timeoutSeconds": str(limit_s)},
        }
        answer = self._send("GET", self._path("pods"), query=query, wait_s=2 * limit_s)
        with answer:
            try:
                for line in answer.iter_lines(chunk_size=None):
                    yield _event(json.loads(line))
            except (requests.RequestException, ValueError) as error:
                raise ApiError(0, str(error)) from error

    def may(self, verb: str, resource: str, name: str = "") -> bool:
        """Returns whether this account has a right in the namespace; with a name, on one object."""
        wanted = {"namespace": self.namespace, "verb": verb, "resource": resource, "name": name}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": wanted},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        answer: Json = self._send("POST", path, body=review).json()
        return bool(answer["status"]["allowed"])

    def _path(self, rest: str, group: str = "") -> str:
        prefix = f"/apis/{group}" if group else "/api/v1"
        return f"{prefix}/namespaces/{self.namespace}/{rest}"

    def _ask(
        self,
        method: str,
        rest: str,
        *,
        body: Json | None = None,
        query: dict[str, str] | None = None,
        group: str = "",
    ) -> Json:
        answer: Json = self._send(method, self._path(rest, group), body=body, query=query).json()
        return answer

    def _send(
        self,
        method: str,
        path: str,
        *,
        body: Json | None = None,
        query: dict[str, str] | None = None,
        wait_s: float | None = None,
    ) -> requests.Response:
        """Sends a request; with `wait_s`, the answer is a stream."""
        kind = MERGE_PATCH if method == "PATCH" else "application/json"
        try:
            answer = self._session.request(
                method,
                self.host + path,
                data=None if body is None else json.dumps(body),
                params=query,
                headers={"Content-Type": kind, "Accept": "application/json"},
                timeout=(TIMEOUT_S[0], wait_s or TIMEOUT_S[1]),
                stream=wait_s is not None,
                verify=self._verify,  # REQUESTS_CA_BUNDLE would override the session's own
            )
        except requests.RequestException as error:
            raise ApiError(0, f"the API server at {self.host} does not answer: {error}") from error
        if not answer.ok:
            raise ApiError(answer.status_code, _refusal(answer))
        return answer


class _SignedIn(requests.auth.AuthBase):
    """Adds the credentials of the official client. Tokens may change at any time."""

    def __init__(self, configuration: Any) -> None:
        self._configuration = configuration

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        for setting in self._configuration.auth_settings().values():
            if setting.get("in") == "header" and setting.get("value"):
                request.headers[setting["key"]] = setting["value"]
        return request


def _event(event: Json) -> tuple[str, Json]:
    kind, content = event["type"], event["object"]
    if kind == "ERROR":
        raise ApiError(content.get("code", 0), content.get("message", "the watch was ended"))
    return kind, content


def _refusal(answer: requests.Response) -> str:
    try:
        return str(answer.json()["message"])
    except (ValueError, KeyError, TypeError):
        return f"{answer.status_code} {answer.reason}"


def connect(namespace: str, *, in_cluster: bool) -> Cluster:
    """Connects to the cluster of this process or, outside of a cluster, of the kubeconfig.

    An empty `namespace` means the namespace of the pod or of the kubeconfig's context.

    Raises:
      ConfigurationError: there is no cluster, or the client is not installed.
    """
    try:
        config = importlib.import_module("kubernetes.config")
        client = importlib.import_module("kubernetes.client")
    except ImportError as error:
        raise ConfigurationError(
            "--launcher=kubernetes was given, but the Python package kubernetes is not installed. "
            "Install it with: pip install 'hvd-elastic-keras[kubernetes]'."
        ) from error
    configuration = client.Configuration()
    try:
        if in_cluster:
            config.load_incluster_config(client_configuration=configuration)
            return Cluster(configuration, namespace or NAMESPACE_FILE.read_text().strip())
        config.load_kube_config(client_configuration=configuration)
        current = config.list_kube_config_contexts()[1]["context"]
    except (config.ConfigException, OSError) as error:
        raise ConfigurationError(
            f"--launcher=kubernetes was given, but no cluster is found: {error}. Run it in a pod "
            "with a service account, or give a kubeconfig (KUBECONFIG) whose current context is "
            "the cluster."
        ) from error
    return Cluster(configuration, namespace or current.get("namespace") or "default")


def put_secret(cluster: Cluster, settings: PodSettings, token: str, owner: Json | None) -> Json:
    """Creates the Secret, or takes over the Secret of an earlier launcher of the job.

    Returns:
      The owner reference by which pods name the Secret as their owner.

    Raises:
      ConfigurationError: a Secret of this name belongs to another job.
      ApiError: the Secret cannot be created.
    """
    content = {TOKEN_KEY: base64.b64encode(token.encode()).decode()}
    metadata: Json = {"name": settings.job, "labels": settings.job_labels}
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
    job_id = label(secret, JOB_LABEL)
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
