"""Files of deploy/kubernetes on a real API server. The test reports what nodes would report."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import yaml

from hvd_elastic_keras.launchers.kubernetes_pod import PodSettings, manifest
from tests.harness import kube
from tests.harness.hosts import wait_until
from tests.harness.job import REPOSITORY
from tests.harness.kube import ControlPlane
from tests.harness.kube_api import STRATEGIC, ApiError, Json, path_of

NAMESPACE = "default"
DEPLOY = REPOSITORY / "hvd_elastic_keras" / "deploy" / "kubernetes"
TOO_MANY_REQUESTS = 429


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    kube.need_api_server()
    with ControlPlane(tmp_path_factory.mktemp("control") / "plane") as made:
        for budget in manifests("disruption-budget.yaml"):
            made.admin.create({**budget, "apiVersion": "policy/v1beta1"})
        yield made


def manifests(file: str) -> list[Json]:
    return list(yaml.safe_load_all((DEPLOY / file).read_text()))


def run(control: ControlPlane, pod: Json) -> str:
    """Reports that a pod runs; returns its name."""
    name = str(pod["metadata"]["name"])
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    control.admin.patch("Pod", NAMESPACE, name, {"status": status}, "status")
    return name


def is_evicted(control: ControlPlane, pod: str) -> bool:
    """Asks for the eviction of a pod as `kubectl drain` does; returns whether it is granted."""
    eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": pod}}
    try:
        control.admin.request("POST", path_of("Pod", NAMESPACE, pod, "eviction"), eviction)
    except ApiError as error:
        if error.status != TOO_MANY_REQUESTS:
            raise
        return False
    else:
        return True


def seen(control: ControlPlane, budget: str, healthy: int) -> None:
    """Waits until the controller has counted the pods that run."""
    wait_until(
        lambda: (
            control.admin.get("PodDisruptionBudget", NAMESPACE, budget)
            .get("status", {})
            .get("currentHealthy")
            == healthy
        ),
        f"{budget} has {healthy} healthy pods",
    )


def deployed(control: ControlPlane, count: int) -> list[Json]:
    """Waits for the pods that the Deployment's controller makes."""
    pods: list[Json] = []

    def there_are() -> bool:
        pods[:] = control.admin.all("Pod", NAMESPACE, "app=elastic,role=worker")
        return len(pods) == count

    wait_until(there_are, f"the Deployment has {count} pods")
    return pods


def pods_of_deployment(control: ControlPlane) -> list[str]:
    (deployment,) = manifests("workers.yaml")
    deployment["spec"]["replicas"] = 2
    control.admin.create(deployment)
    return [run(control, pod) for pod in deployed(control, 2)]


def pods_of_launcher(control: ControlPlane) -> list[str]:
    settings = PodSettings("elastic", "0123456789abcdef", "any", NAMESPACE)
    made = [manifest(settings, worker_id, [], None) for worker_id in ("w0", "w1")]
    return [run(control, control.admin.create(pod)) for pod in made]


@pytest.mark.parametrize(
    ("budget", "start"),
    [("elastic-workers", pods_of_deployment), ("elastic-launcher", pods_of_launcher)],
)
def test_a_drain_leaves_one_worker(
    control: ControlPlane, budget: str, start: Callable[[ControlPlane], list[str]]
) -> None:
    first, second = start(control)
    seen(control, budget, 2)
    assert is_evicted(control, first)
    seen(control, budget, 1)
    assert not is_evicted(control, second)


def test_the_overlay_of_the_page_changes_the_workers(control: ControlPlane) -> None:
    page = (REPOSITORY / "docs" / "kubernetes.md").read_text()
    (text,) = [part for part in page.split("```") if part.startswith("yaml\nresources: [../deploy")]
    (patch,) = yaml.safe_load(text.removeprefix("yaml"))["patches"]
    change = yaml.safe_load(patch["patch"])
    (deployment,) = manifests("workers.yaml")
    control.admin.create({"kind": "Namespace", "metadata": {"name": "training"}})
    control.admin.create(deployment, "training")
    before = deployment["spec"]["template"]["spec"]
    name = change["metadata"]["name"]
    found = control.admin.patch("Deployment", "training", name, change, how=STRATEGIC)["spec"]
    after = found["template"]["spec"]
    (container,) = after["containers"]
    assert found["replicas"] == 8
    assert container["command"] == before["containers"][0]["command"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert container["resources"]["requests"] == before["containers"][0]["resources"]["requests"]
    assert after["priorityClassName"] == "low"
    assert after["securityContext"] == before["securityContext"]


def test_kustomize_finds_all_files_that_it_is_to_apply() -> None:
    text = (DEPLOY / "kustomization.yaml").read_text()
    (named,) = manifests("kustomization.yaml")
    commented = [line[4:] for line in text.splitlines() if line.startswith("# - ")]
    files = {path.name for path in DEPLOY.glob("*.yaml")}
    assert files - {*named["resources"], *commented} == {"kustomization.yaml", "workers-job.yaml"}
    assert {*named["resources"], *commented} <= files
