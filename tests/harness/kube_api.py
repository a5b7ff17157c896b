"""The API of a Kubernetes in plain requests, as far as tests and the harness need it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import requests

Json = dict[str, Any]
TIMEOUT_S = 30.0
CORE = "/api/v1"
GROUPS = {
    "Deployment": "/apis/apps/v1",
    "ReplicaSet": "/apis/apps/v1",
    "StatefulSet": "/apis/apps/v1",
    "Job": "/apis/batch/v1",
    "NetworkPolicy": "/apis/networking.k8s.io/v1",
    "Role": "/apis/rbac.authorization.k8s.io/v1",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1",
    "PriorityClass": "/apis/scheduling.k8s.io/v1",
}
"""Where the kinds live that are not of the core."""
PLURALS = {
    "Endpoints": "endpoints",
    "NetworkPolicy": "networkpolicies",
    "PriorityClass": "priorityclasses",
}
"""All others end in s."""
CLUSTER_WIDE = ("Namespace", "Node", "PersistentVolume", "PriorityClass")
MERGE = "application/merge-patch+json"


def path_of(kind: str, namespace: str = "", name: str = "", part: str = "") -> str:
    """The path of an object or, without a name, of all of its kind.

    Args:
      namespace: empty: of all.
      part: such as "status".
    """
    parts = [GROUPS.get(kind, CORE)]
    if namespace and kind not in CLUSTER_WIDE:
        parts += ["namespaces", namespace]
    parts += [PLURALS.get(kind, f"{kind.lower()}s"), name, part]
    return "/".join(p for p in parts if p)


class ApiError(Exception):
    """The API server has refused a request.

    Attributes:
      status: HTTP's.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class Api:
    """What one account says to the API server; for one thread."""

    def __init__(self, url: str, token: str, authority: Path) -> None:
        self._url = url
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.verify = str(authority)
        self._session.headers["Authorization"] = f"Bearer {token}"

    def close(self) -> None:
        """Ends its connections."""
        self._session.close()

    def request(
        self, method: str, path: str, body: Json | None = None, kind: str = "application/json"
    ) -> Json:
        """The answer to a request.

        Raises:
          ApiError: it is refused.
          requests.RequestException: there is no answer.
        """
        answer = self._session.request(
            method,
            self._url + path,
            json=body,
            headers={"Content-Type": kind} if body is not None else {},
            timeout=TIMEOUT_S,
        )
        if answer.status_code >= 400:
            raise ApiError(answer.status_code, answer.text)
        found: Json = answer.json()
        return found

    def get(self, kind: str, namespace: str, name: str) -> Json:
        """An object."""
        return self.request("GET", path_of(kind, namespace, name))

    def find(self, kind: str, namespace: str, name: str) -> Json | None:
        """An object; None if there is none."""
        try:
            return self.get(kind, namespace, name)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def all(self, kind: str, namespace: str = "", selector: str = "") -> list[Json]:
        """All objects of a kind, of one namespace or all; perhaps only those with some labels."""
        path = path_of(kind, namespace)
        items: list[Json] = self.request("GET", f"{path}?labelSelector={selector}")["items"]
        return items

    def create(self, manifest: Json, namespace: str = "default") -> Json:
        """Makes an object as its manifest says."""
        where = manifest["metadata"].get("namespace", namespace)
        return self.request("POST", path_of(manifest["kind"], where), manifest)

    def patch(self, kind: str, namespace: str, name: str, change: Json, part: str = "") -> Json:
        """Changes some values of an object, or of a part of it."""
        return self.request("PATCH", path_of(kind, namespace, name, part), change, MERGE)

    def scale(self, kind: str, namespace: str, name: str, replicas: int) -> None:
        """Does what `kubectl scale` does."""
        self.patch(kind, namespace, name, {"spec": {"replicas": replicas}}, "scale")

    def delete(
        self, kind: str, namespace: str, name: str, grace_s: int | None = None, uid: str = ""
    ) -> None:
        """Deletes an object, with all that it owns; a pod with its own grace period, or `grace_s`.

        Args:
          uid: nothing is deleted that has another one.
        """
        body: Json = {"propagationPolicy": "Background"}
        if uid:
            body["preconditions"] = {"uid": uid}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        self.request("DELETE", path_of(kind, namespace, name), body)
