"""The kubelet of all nodes of a test's cluster: runs the first container of each pod as a process.

A pod has the address of its node, and a hostname, process ids and mounts of its own. It finds
Services and pods by name in the node's `/etc/hosts`. Its volumes are plain directories.
"""

from __future__ import annotations

import base64
import contextlib
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from tests.harness.hosts import Hosts
from tests.harness.job import REPOSITORY
from tests.harness.kube_api import STRATEGIC, Api, ApiError, Controller, Json
from tests.harness.pod_container import Container
from tests.harness.pod_volumes import PodVolumes, field_of

if TYPE_CHECKING:
    from typing_extensions import Self

BEAT_S = 1.0
BACK_OFF_S = 0.5
"""Seconds before the second restart of a container, where Kubernetes waits 10 s."""
MISSING_IMAGES = "missing/"
"""The prefix of the names of images that cannot be pulled."""
CAPACITY = {"cpu": "8", "memory": "16Gi", "pods": "20"}


class Kubelet(Controller):
    """Runs pods from the start of a `with` block to its end; nothing outlives it.

    Args:
      api: the API for an account that may do everything; it is closed at the end.
      directory: directory of the test. Mount points that the machine does not have must be below
        it, or below /run.
      environment: variables that the pods' image sets, beside the path of the interpreter.
    """

    def __init__(
        self, api: Api, hosts: Hosts, directory: Path, environment: Mapping[str, str]
    ) -> None:
        super().__init__(api)
        self._hosts = hosts
        self._directory = directory
        self._environment = environment
        self._runs: dict[str, PodRun] = {}
        self._lost: set[str] = set()
        self._beaten = 0.0
        self._lock = threading.Lock()
        self.logs = directory / "pod_logs"

    def __enter__(self) -> Self:
        self.logs.mkdir()
        for node in self._hosts.names:
            labels = {"kubernetes.io/hostname": node}
            self._api.create({"kind": "Node", "metadata": {"name": node, "labels": labels}})
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        try:
            super().__exit__()
        finally:
            for run in self._runs.values():
                run.kill()

    # --- what tests do -------------------------------------------------------------------

    def log(self, pod: str, namespace: str = "default") -> str:
        """Returns what the containers of a pod have printed, one after the other."""
        path = self.logs / f"{namespace}-{pod}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def kill_for_memory(self, pod: str, namespace: str = "default") -> None:
        """Ends a pod's container as the kernel does when the container takes too much memory."""
        with self._lock:
            self._run_of(pod, namespace).end("OOMKilled")

    def evict(self, pod: str, namespace: str = "default") -> None:
        """Ends a pod as a kubelet does when its node runs short of memory."""
        with self._lock:
            self._run_of(pod, namespace).evict()

    def lose(self, node: str) -> None:
        """Powers a node off. Its pods stay in the list until they are deleted by force."""
        with self._lock:
            self._lost.add(node)
            self._hosts.power_off(node)
            for uid in [uid for uid, run in self._runs.items() if run.node == node]:
                self._runs.pop(uid).kill()
            self._tell_node(node, "Unknown", "NodeStatusUnknown")

    def boot(self, node: str) -> None:
        """Starts a node that was lost."""
        with self._lock:
            self._hosts.boot(node)
            self._lost.discard(node)
            self._beaten = 0.0

    def _run_of(self, pod: str, namespace: str) -> PodRun:
        return next(r for r in self._runs.values() if (r.name, r.namespace) == (pod, namespace))

    # --- the loop ------------------------------------------------------------------------

    def _look(self) -> None:
        with self._lock:
            self._look_at_all()

    def _look_at_all(self) -> None:
        if time.monotonic() - self._beaten > BEAT_S:
            for node in set(self._hosts.names) - self._lost:
                self._tell_node(node, "True", "KubeletReady")
            self._beaten = time.monotonic()
        pods = {pod["metadata"]["uid"]: pod for pod in self._api.all("Pod")}
        self._write_names(list(pods.values()))
        for uid in self._runs.keys() - pods.keys():
            self._runs.pop(uid).kill()
        for uid, pod in pods.items():
            node = pod["spec"].get("nodeName")
            if node in self._hosts.names and node not in self._lost:
                self._step(uid, pod)

    def _step(self, uid: str, pod: Json) -> None:
        if uid not in self._runs:
            self._runs[uid] = PodRun(
                self._api,
                self._hosts,
                self._directory,
                self._environment,
                pod=pod,
                logs=self.logs,
            )
        with contextlib.suppress(GoneError):
            self._runs[uid].step(pod)

    def _tell_node(self, node: str, ready: str, reason: str) -> None:
        condition = {
            "type": "Ready",
            "status": ready,
            "reason": reason,
            "lastHeartbeatTime": now(),
            "lastTransitionTime": now(),
        }
        address = {"type": "InternalIP", "address": self._hosts.address(node)}
        status = {
            "capacity": CAPACITY,
            "allocatable": CAPACITY,
            "conditions": [condition],
            "addresses": [address],
        }
        self._api.patch("Node", "", node, {"status": status}, "status")

    def _write_names(self, pods: list[Json]) -> None:
        """Lets all nodes resolve the names of Services and pods."""
        names = {}
        for pod in pods:
            if pod["status"].get("podIP"):
                names[pod["metadata"]["name"]] = pod["status"]["podIP"]
        for endpoints in self._api.all("Endpoints"):
            addresses = [a for s in endpoints.get("subsets", []) for a in s.get("addresses", [])]
            name, namespace = endpoints["metadata"]["name"], endpoints["metadata"]["namespace"]
            for known in (name, f"{name}.{namespace}", f"{name}.{namespace}.svc"):
                if addresses:
                    names[known] = addresses[0]["ip"]
        for node in set(self._hosts.names) - self._lost:
            self._hosts.know(node, names)


class GoneError(Exception):
    """A pod was deleted in the meantime."""


class PodRun:
    """One pod on its node, from its start to its end."""

    def __init__(
        self,
        api: Api,
        hosts: Hosts,
        directory: Path,
        environment: Mapping[str, str],
        *,
        pod: Json,
        logs: Path,
    ) -> None:
        self.name = str(pod["metadata"]["name"])
        self.namespace = str(pod["metadata"]["namespace"])
        self.node = str(pod["spec"]["nodeName"])
        self._api = api
        self._hosts = hosts
        self._directory = directory
        self._environment = environment
        self._pod = pod
        self._log = logs / f"{self.namespace}-{self.name}.log"
        self._container: Container | None = None
        self._over = pod["status"]["phase"] in ("Succeeded", "Failed")
        self._starts = 0
        self._start_at = 0.0
        self._kill_at: float | None = None
        self._last: Json = {}

    def step(self, pod: Json) -> None:
        """Does what has to be done now."""
        self._pod = pod
        if "deletionTimestamp" in pod["metadata"]:
            self._terminate()
        elif self._container:
            code = self._container.exit_code()
            if code is not None:
                self._ended(code, "Error" if code else "Completed")
        elif not self._over and time.monotonic() >= self._start_at:
            self._start()

    def end(self, reason: str) -> None:
        """Kills the container for a reason."""
        if self._container:
            self._ended(self._container.kill(), reason)

    def evict(self) -> None:
        """Ends the pod for good. It is not started again, whatever its restart policy."""
        code = self._container.kill() if self._container else 137
        self._container, self._over = None, True
        message = "The node was low on resource: memory."
        self._tell(
            {"terminated": {"exitCode": code, "reason": "Error", "finishedAt": now()}},
            phase="Failed",
            reason="Evicted",
            message=message,
        )

    def kill(self) -> None:
        """Ends all processes of the pod at once."""
        if self._container:
            self._container.kill()
            self._container = None

    # --- start ---------------------------------------------------------------------------

    @property
    def _spec(self) -> Json:
        spec: Json = self._pod["spec"]["containers"][0]
        return spec

    @property
    def _own_volumes(self) -> Path:
        path: Path = self._directory / "volumes" / self._pod["metadata"]["uid"]
        return path

    def _start(self) -> None:
        if self._spec["image"].startswith(MISSING_IMAGES):
            self._wait_for("ImagePullBackOff", f"Back-off pulling image {self._spec['image']}")
            return
        try:
            mounts, variables = self._mounts(), self._variables()
        except ApiError as error:
            self._wait_for("CreateContainerConfigError", str(error))
            return
        self._starts += 1
        self._container = Container(
            self._hosts,
            self.node,
            self.name,
            mounts=mounts,
            command=self._command(variables),
            environment=variables,
            directory=Path(self._spec.get("workingDir", REPOSITORY)),
            log=self._log,
        )
        self._tell({"running": {"startedAt": now()}}, phase="Running")

    def _wait_for(self, reason: str, message: str) -> None:
        self._start_at = time.monotonic() + BEAT_S
        self._tell({"waiting": {"reason": reason, "message": message}}, phase="Pending")

    def _command(self, variables: Mapping[str, str]) -> list[str]:
        words = [*self._spec.get("command", []), *self._spec.get("args", [])]
        return [re.sub(r"\$\((\w+)\)", lambda m: variables.get(m[1], m[0]), str(w)) for w in words]

    def _variables(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        found = {"PATH": path, "HOSTNAME": self.name, **self._environment}
        for variable in self._spec.get("env", []):
            origin = variable.get("valueFrom")
            found[variable["name"]] = self._value(origin) if origin else variable.get("value", "")
        return found

    def _value(self, origin: Json) -> str:
        if "fieldRef" in origin:
            path = origin["fieldRef"]["fieldPath"]
            is_address = path == "status.podIP"
            return self._hosts.address(self.node) if is_address else field_of(self._pod, path)
        reference = origin["secretKeyRef"]
        secret = self._api.get("Secret", self.namespace, reference["name"])
        return base64.b64decode(secret["data"][reference["key"]]).decode()

    def _mounts(self) -> dict[Path, Path]:
        volumes = PodVolumes(self._api, self._pod, self._own_volumes)
        found = {}
        for mount in self._spec.get("volumeMounts", []):
            place = Path(str(mount["mountPath"]).replace("/var/run/", "/run/"))
            if place == Path("/tmp"):  # would hide what the tests keep there
                continue
            allowed = place.is_relative_to(self._directory) or place.is_relative_to("/run")
            if not (allowed or place.exists()):
                raise ApiError(0, f"{place} is not on this machine, nor below {self._directory}")
            found[place] = volumes.find(mount["name"])
        return found

    # --- end -----------------------------------------------------------------------------

    def _ended(self, code: int, reason: str) -> None:
        self._container = None
        state = {"exitCode": code, "reason": reason, "startedAt": now(), "finishedAt": now()}
        policy = self._pod["spec"]["restartPolicy"]
        again = policy == "Always" or (policy == "OnFailure" and code != 0)
        if again and "deletionTimestamp" not in self._pod["metadata"]:
            self._last = {"terminated": state}
            self._start_at = time.monotonic() + BACK_OFF_S * min(self._starts - 1, 10)
            self._tell({"waiting": {"reason": "CrashLoopBackOff"}}, phase="Running")
            return
        self._over = True
        self._tell({"terminated": state}, phase="Failed" if code else "Succeeded")

    def _terminate(self) -> None:
        """Ends a pod that is being deleted: SIGTERM, grace period, SIGKILL, then removal."""
        if self._container and self._container.exit_code() is None:
            if self._kill_at is None:
                grace_s = self._pod["metadata"].get("deletionGracePeriodSeconds", 0)
                self._kill_at = time.monotonic() + grace_s
                if grace_s:
                    self._container.signal(signal.SIGTERM)
            if time.monotonic() < self._kill_at:
                return
        if self._container:
            code = self._container.kill()
            self._ended(code, "Error" if code else "Completed")
        uid = self._pod["metadata"]["uid"]
        with contextlib.suppress(ApiError):
            self._api.delete("Pod", self.namespace, self.name, grace_s=0, uid=uid)
        shutil.rmtree(self._own_volumes, ignore_errors=True)

    def _tell(self, state: Json, **values: str) -> None:
        """Reports the pod's state to the API server."""
        ready = "running" in state
        container = {
            "name": self._spec["name"],
            "image": self._spec["image"],
            "imageID": "",
            "ready": ready,
            "restartCount": max(0, self._starts - 1),
            "state": state,
            "lastState": self._last,
        }
        condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": now()}
        status = {
            "podIP": self._hosts.address(self.node),
            "hostIP": self._hosts.address(self.node),
            "startTime": self._pod["status"].get("startTime", now()),
            "conditions": [condition],
            "containerStatuses": [container],
            **values,
        }
        try:
            change = {"status": status}
            self._api.patch("Pod", self.namespace, self.name, change, "status", how=STRATEGIC)
        except ApiError as error:
            if error.status == 404:
                raise GoneError from None
            raise


def now() -> str:
    """Returns the present time as Kubernetes writes it."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
