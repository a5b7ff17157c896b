"""The pods of deploy/kubernetes keep to the Pod Security Standard "restricted".

https://kubernetes.io/docs/concepts/security/pod-security-standards
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hvd_elastic_keras.launchers import kubernetes_pod as pods
from hvd_elastic_keras.launchers.kubernetes_pod import PodSettings

DEPLOY = Path(__file__).resolve().parents[3] / "hvd_elastic_keras" / "deploy" / "kubernetes"
Spec = dict[str, Any]
VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral"),
    *("persistentVolumeClaim", "projected", "secret"),
}


def violations(spec: Spec) -> Iterator[str]:
    """What the standard forbids, as the admission of Kubernetes names it."""
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield name
    for volume in spec.get("volumes", ()):
        if volume.keys() - {"name"} - VOLUMES:
            yield "volumes"
    of_pod = spec.get("securityContext", {})
    for container in spec["containers"]:
        context = {**of_pod, **container.get("securityContext", {})}
        if context.get("privileged") or context.get("procMount", "Default") != "Default":
            yield "privileged"
        if context.get("allowPrivilegeEscalation") is not False:
            yield "allowPrivilegeEscalation"
        if context.get("runAsNonRoot") is not True or context.get("runAsUser") == 0:
            yield "runAsNonRoot"
        if context.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
            yield "seccompProfile"
        capabilities = context.get("capabilities", {})
        allowed = {"NET_BIND_SERVICE"}.issuperset(capabilities.get("add", ()))
        if "ALL" not in capabilities.get("drop", ()) or not allowed:
            yield "capabilities"
        if any("hostPort" in port for port in container.get("ports", ())):
            yield "hostPorts"


def specs() -> Iterator[tuple[str, Spec]]:
    """The specifications of all pods, and that which the launcher makes of its template."""
    for path in sorted(DEPLOY.glob("*.yaml")):
        for part in yaml.safe_load_all(path.read_text()):
            if part["kind"] in ("Job", "Deployment"):
                yield path.name, part["spec"]["template"]["spec"]
            if part["kind"] == "ConfigMap":
                template = pods.check_template(yaml.safe_load(part["data"]["worker.yaml"]))
                settings = PodSettings("elastic", "0123", "image:1", "team", template=template)
                yield "a worker of launcher.yaml", pods.manifest(settings, "w0", [], None)["spec"]


SPECS = dict(specs())


def test_there_are_all_pods() -> None:
    assert list(SPECS) == [
        *("a worker of launcher.yaml", "launcher.yaml", "master.yaml"),
        *("workers-job.yaml", "workers.yaml"),
    ]


@pytest.mark.parametrize("name", SPECS)
def test_a_pod_may_run_in_a_restricted_namespace(name: str) -> None:
    assert list(violations(SPECS[name])) == []


@pytest.mark.parametrize("name", SPECS)
def test_a_pod_writes_only_to_its_volumes(name: str) -> None:
    (container,) = SPECS[name]["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    (scratch,) = [m["name"] for m in container["volumeMounts"] if m["mountPath"] == "/tmp"]
    assert {"name": scratch, "emptyDir": {}} in SPECS[name]["volumes"]
    assert {"name": "HOME", "value": "/tmp"} in container["env"]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"hostNetwork": True}, "hostNetwork"),
        ({"securityContext": {"runAsNonRoot": True}}, "seccompProfile"),
        ({"volumes": [{"name": "a", "hostPath": {"path": "/"}}]}, "volumes"),
    ],
)
def test_a_pod_that_is_not_restricted_is_found(change: Spec, found: str) -> None:
    assert found in violations(copy.deepcopy(SPECS["master.yaml"]) | change)
