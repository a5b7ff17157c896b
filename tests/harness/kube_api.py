"""The API of a Kubernetes in plain requests, as far as tests and the harness need it."""

from __future__ import annotations

import sys
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import requests

if TYPE_CHECKING:
    from typing_extensions import Self

Json = dict[str, Any]
TIMEOUT_S = 30.0
END_S = 60.0
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
    "PodDisruptionBudget": "/apis/policy/v1beta1",
}
"""The paths of the kinds that are not in the core group."""
PLURALS = {
    "Endpoints": "endpoints",
    "NetworkPolicy": "networkpolicies",
    "PriorityClass": "priorityclasses",
}
"""The plurals that are irregular; all others add an "s"."""
CLUSTER_WIDE = ("Namespace", "Node", "PersistentVolume", "PriorityClass")
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
"""A change that keeps the other entries of lists whose entries have names, such as conditions."""


def path_of(kind: str, namespace: str = "", name: str = "", part: str = "") -> str:
    """Returns the path of an object or, without a name, of all objects of a kind.

    Args:
      namespace: the namespace; empty: all of them.
      part: a part of the object, such as "status".
    """
    parts = [GROUPS.get(kind, CORE)]
    if namespace and kind not in CLUSTER_WIDE:
        parts += ["namespaces", namespace]
    parts += [PLURALS.get(kind, f"{kind.lower()}s"), name, part]
    return "/".join(p for p in parts if p)


class ApiError(Exception):
    """The API server has refused a request.

    Attributes:
      status: the HTTP status.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class Controller:
    """Looks at a cluster again and again, from the start of a `with` block to its end.

    Args:
      api: the API for an account that may do everything; it is closed at the end.
    """

    POLL_S = 0.05

    def __init__(self, api: Api) -> None:
        self._api = api
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._error = ""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(END_S)
        self._api.close()
        assert not self._error, self._error

    def _work(self) -> None:
        while not self._over.wait(self.POLL_S):
            try:
                self._look()
            except requests.RequestException:
                continue  # the API server does not answer at present
            except Exception:
                self._error = traceback.format_exc()
                print(self._error, file=sys.stderr)
                return

    def _look(self) -> None:
        """Does what has to be done now."""
        raise NotImplementedError


class Api:
    """The API server, as one account uses it; for one thread."""

    def __init__(self, url: str, token: str, authority: Path) -> None:
        self._url = url
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.verify = str(authority)
        self._session.headers["Authorization"] = f"Bearer {token}"

    def close(self) -> None:
        """Closes its connections."""
        self._session.close()

    def request(
        self, method: str, path: str, body: Json | None = None, kind: str = "application/json"
    ) -> Json:
        """Sends a request; returns the answer.

        Raises:
          ApiError: if the request is refused.
          requests.RequestException: if there is no answer.
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
        """Returns an object."""
        return self.request("GET", path_of(kind, namespace, name))

    def find(self, kind: str, namespace: str, name: str) -> Json | None:
        """Returns an object; None if it does not exist."""
        try:
            return self.get(kind, namespace, name)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def all(self, kind: str, namespace: str = "", selector: str = "") -> list[Json]:
        """Returns the objects of a kind, of one namespace or all, that match the selector."""
        path = path_of(kind, namespace)
        items: list[Json] = self.request("GET", f"{path}?labelSelector={selector}")["items"]
        return items

    def create(self, manifest: Json, namespace: str = "default") -> Json:
        """Creates an object from its manifest."""
        where = manifest["metadata"].get("namespace", namespace)
        return self.request("POST", path_of(manifest["kind"], where), manifest)

    def patch(
        self,
        kind: str,
        namespace: str,
        name: str,
        change: Json,
        part: str = "",
        *,
        how: str = MERGE,
    ) -> Json:
        """Changes some values of an object, or of one part of it."""
        return self.request("PATCH", path_of(kind, namespace, name, part), change, how)

    def scale(self, kind: str, namespace: str, name: str, replicas: int) -> None:
        """Does what `kubectl scale` does."""
        self.patch(kind, namespace, name, {"spec": {"replicas": replicas}}, "scale")

    def delete(
        self, kind: str, namespace: str, name: str, grace_s: int | None = None, uid: str = ""
    ) -> None:
        """Deletes an object and all that it owns.

        A pod gets its own grace period, or `grace_s`.

        Args:
          uid: if given, an object with another uid is not deleted.
        """
        body: Json = {"propagationPolicy": "Background"}
        if uid:
            body["preconditions"] = {"uid": uid}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        self.request("DELETE", path_of(kind, namespace, name), body)
