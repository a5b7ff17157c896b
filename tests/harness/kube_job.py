"""A job of `deploy/kubernetes` on a cluster: the real files, with paths of this machine."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.harness import faults
from tests.harness.hosts import wait_until
from tests.harness.job import REPOSITORY, Job
from tests.harness.kube import Cluster
from tests.harness.kube_api import Json

DEPLOY = REPOSITORY / "hvd_elastic_keras" / "deploy" / "kubernetes"
TOKEN = "token-of-a-test-0123456789-0123456789"
SECRET = "elastic-token"
IMAGE = "registry.example.com/my-training:1"
MODEL = "--model=digits_cnn"


class KubeJob(Job):
    """A job started as a user would with `kubectl apply`. Its workers are applied later.

    Args:
      flags: options for the master.
    """

    FILES: tuple[str, ...] = ("volume.yaml", "master.yaml")
    MASTER = "elastic-master"
    """The Kubernetes Job that keeps the master running."""
    limit_s = 300.0

    def __init__(
        self, cluster: Cluster, directory: Path, *flags: str, plan: list[faults.Fault]
    ) -> None:
        super().__init__(directory, *flags, plan=plan)
        self._cluster = cluster
        self._applied: list[Json] = []

    def start_launcher(self, *_: str) -> None:
        """Applies the files, and starts a process that stands for the launcher.

        That process ends when the `with` block does.
        """
        self._prepare()
        self._cluster.admin.create(
            {
                "kind": "PersistentVolume",
                "metadata": {"name": "jobs"},
                "spec": {
                    "capacity": {"storage": "20Gi"},
                    "accessModes": ["ReadWriteMany"],
                    "hostPath": {"path": str(self.job_dir.parent)},
                    "persistentVolumeReclaimPolicy": "Retain",
                },
            }
        )
        self._temporary.mkdir(exist_ok=True)
        for manifest in (m for name in self.FILES for m in self.manifests(name)):
            self.apply(manifest)
        wait = "import sys; sys.stdin.read()"
        self._process = subprocess.Popen([sys.executable, "-c", wait], stdin=subprocess.PIPE)

    def _prepare(self) -> None:
        """Creates the objects that are in none of the files."""
        self._cluster.admin.create(
            {"kind": "Secret", "metadata": {"name": SECRET}, "stringData": {"token": TOKEN}}
        )

    def apply(self, manifest: Json) -> None:
        """Creates the object of a manifest."""
        self._cluster.admin.create(manifest)
        self._applied.append(manifest)

    def manifests(self, name: str) -> Iterator[Json]:
        """Yields the manifests of a file, with the test's job directory and the harness's model."""
        text = (DEPLOY / name).read_text()
        assert IMAGE in text or "containers" not in text
        text = text.replace("/jobs/demo", str(self.job_dir))
        for manifest in yaml.safe_load_all(text.replace("/jobs", str(self.job_dir.parent))):
            for command in _commands(manifest):
                if MODEL in command:
                    command.remove(MODEL)
                    own = [f for f in self._arguments if not f.startswith("--job_dir=")]
                    command += [*self._command, *own]
            yield manifest

    @property
    def output(self) -> str:
        """The output of the pods."""
        return self._cluster.report()

    def __exit__(self, *_: object) -> None:
        if self._process and self._process.stdin:
            self._process.stdin.close()
        super().__exit__()

    def master(self) -> str:
        """Returns the name of the master's pod that is not being deleted."""
        return str(self._pod_of_master()["metadata"]["name"])

    def ctl_in_pod(self, *arguments: str) -> str:
        """Returns the output of `kubectl exec` with `ctl` in the pod of the master."""
        path = f"PYTHONPATH={os.environ['PYTHONPATH']}"
        program = ["env", path, sys.executable, "-m", "hvd_elastic_keras.ctl"]
        pod, hosts = self._pod_of_master(), self._cluster.hosts
        node, line = pod["spec"]["nodeName"], f"{pod['status']['podIP']} {self.MASTER}\n"
        wait_until(lambda: line in hosts.call(node, "cat", "/etc/hosts"), "its name is known")
        return hosts.call(node, *program, f"--job_dir={self.job_dir}", *arguments)

    def _pod_of_master(self) -> Json:
        (pod,) = self._cluster.wait_for_pods(f"job-name={self.MASTER}", 1)
        return pod

    def finished(self) -> None:
        """Waits until Kubernetes reports that the job is finished."""

        def complete() -> bool:
            status = self._cluster.admin.get("Job", "default", self.MASTER)["status"]
            assert "Failed" not in [c["type"] for c in status.get("conditions", [])], self.report()
            return bool(status.get("succeeded"))

        wait_until(complete, "the Job of the master is complete", self.limit_s)

    def remove(self) -> None:
        """Deletes all that was applied, and waits until no pod is left."""
        for manifest in self._applied:
            self._cluster.admin.delete(manifest["kind"], "default", manifest["metadata"]["name"])
        wait_until(lambda: self._cluster.pods() == [], "no pod is left")


class LaunchedKubeJob(KubeJob):
    """A job whose master makes the pods of its workers itself."""

    FILES = ("rbac.yaml", "volume.yaml", "launcher.yaml")
    MASTER = "elastic-launcher"

    def _prepare(self) -> None:
        """Does nothing: the files hold all that is needed."""


def _commands(manifest: Json) -> Iterator[list[str]]:
    with contextlib.suppress(KeyError, TypeError):
        containers: list[dict[str, Any]] = manifest["spec"]["template"]["spec"]["containers"]
        for container in containers:
            yield container["command"]
