"""The Kubernetes that tests run on treats pods like a real one."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from tests.harness import kube
from tests.harness.hosts import wait_until
from tests.harness.job import REPOSITORY
from tests.harness.kube import Cluster
from tests.harness.kube_api import ApiError, Json, path_of

pytestmark = pytest.mark.slow
LEAVES = "trap 'echo asked; exit 75' TERM; echo begun; while :; do sleep 0.05; done"
STAYS = "trap '' TERM; echo begun; while :; do sleep 0.05; done"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    kube.need_cluster()
    with Cluster(tmp_path_factory.mktemp("cluster"), nodes=2) as made:
        yield made


def pod(name: str, script: str, **spec: Any) -> Json:
    """Returns the manifest of a pod that runs a shell script."""
    container = {"name": "main", "image": "any", "command": ["sh", "-c", script]}
    container |= spec.pop("container", {})
    return {
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"restartPolicy": "Never", "containers": [container], **spec},
    }


def state(cluster: Cluster, name: str) -> Json:
    """Returns the state of a pod's container."""
    status = cluster.admin.get("Pod", "default", name)["status"]
    found: Json = status.get("containerStatuses", [{"state": {}}])[0]
    return found


def begun(cluster: Cluster, name: str, times: int = 1) -> None:
    """Waits until the script of a pod has begun."""
    wait_until(lambda: cluster.kubelet.log(name).count("begun") >= times, f"{name} begins")


def gone(cluster: Cluster, name: str) -> None:
    """Waits until the pod is gone."""
    wait_until(lambda: cluster.admin.find("Pod", "default", name) is None, f"{name} is gone")


def test_a_pod_has_a_phase_an_exit_code_and_a_log(cluster: Cluster) -> None:
    for name, code, phase in (("good", 0, "Succeeded"), ("bad", 93, "Failed")):
        cluster.admin.create(pod(name, f"hostname; exit {code}"))
        (found,) = cluster.wait_for_pods(f"app={name}", 1, phase)
        ended = found["status"]["containerStatuses"][0]["state"]["terminated"]
        assert ended["exitCode"] == code
        assert ended["reason"] == ("Error" if code else "Completed")
        assert cluster.kubelet.log(name) == f"{name}\n"
        assert found["status"]["podIP"] == cluster.hosts.address(found["spec"]["nodeName"])


def test_a_pod_that_is_deleted_has_its_grace_period_and_not_more(cluster: Cluster) -> None:
    for name, script, grace_s in (("leaves", LEAVES, 60), ("stays", STAYS, 1)):
        cluster.admin.create(pod(name, script, terminationGracePeriodSeconds=grace_s))
        begun(cluster, name)
        cluster.admin.delete("Pod", "default", name)
        gone(cluster, name)
        assert ("asked" in cluster.kubelet.log(name)) == (name == "leaves")
        wait_until(lambda: not any(map(cluster.hosts.pids, cluster.hosts.names)), "it has ended")


def test_secrets_fields_and_services_are_found(cluster: Cluster, tmp_path: Path) -> None:
    cluster.admin.create(
        {"kind": "Secret", "metadata": {"name": "key"}, "stringData": {"token": "secret value"}}
    )
    cluster.admin.create(
        {
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"clusterIP": "None", "selector": {"app": "server"}},
        }
    )
    serve = "echo begun >page; exec python -m http.server 8123"
    cluster.admin.create(pod("server", serve, container={"workingDir": str(tmp_path)}))
    volume = {"name": "key", "secret": {"secretName": "key"}}
    mount = {"name": "key", "mountPath": "/run/key"}
    reference = {"secretKeyRef": {"name": "key", "key": "token"}}
    field = {"fieldRef": {"fieldPath": "metadata.name"}}
    get = "import urllib.request as r; print(r.urlopen('http://web:8123/page').read())"
    ask = f'until python -c "{get}"; do :; done'
    script = f'cat /run/key/token; echo; echo "$TOKEN $NAME"; {ask}'
    env = [{"name": "TOKEN", "valueFrom": reference}, {"name": "NAME", "valueFrom": field}]
    spec = {"volumes": [volume], "container": {"volumeMounts": [mount], "env": env}}
    cluster.admin.create(pod("asks", script, **spec))
    cluster.wait_for_pods("app=asks", 1, "Succeeded")
    lines = cluster.kubelet.log("asks").splitlines()
    assert lines[:2] == ["secret value", "secret value asks"]
    assert lines[-1] == "b'begun\\n'"
    cluster.admin.delete("Pod", "default", "server", grace_s=0)
    gone(cluster, "server")


def test_a_pod_has_the_token_of_its_account_and_what_a_config_map_holds(cluster: Cluster) -> None:
    cluster.admin.create(
        {"kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"lines": "one\ntwo\n"}}
    )
    volume = {"name": "settings", "configMap": {"name": "settings"}}
    mount = {"name": "settings", "mountPath": "/run/settings"}
    script = "cd /var/run; cat settings/lines; cd secrets/kubernetes.io/serviceaccount"
    script += "; cat namespace; echo; test -s ca.crt && echo trusts; cat token; echo"
    spec = {"volumes": [volume], "container": {"volumeMounts": [mount]}}
    cluster.admin.create(pod("knows", script, **spec))
    cluster.wait_for_pods("app=knows", 1, "Succeeded")
    *lines, token = cluster.kubelet.log("knows").splitlines()
    assert lines == ["one", "two", "default", "trusts"]
    api = cluster.control.api(token)
    with pytest.raises(ApiError, match=r"403.*system:serviceaccount:default:default"):
        api.all("Pod", "default")
    api.close()


def test_a_container_that_takes_too_much_memory_starts_again_and_an_evicted_pod_does_not(
    cluster: Cluster,
) -> None:
    cluster.admin.create(pod("greedy", LEAVES, restartPolicy="Always"))
    begun(cluster, "greedy")
    cluster.kubelet.kill_for_memory("greedy")
    begun(cluster, "greedy", times=2)
    wait_until(lambda: "running" in state(cluster, "greedy")["state"], "it runs again")
    found = state(cluster, "greedy")
    assert found["restartCount"] == 1
    assert found["lastState"]["terminated"]["reason"] == "OOMKilled"
    assert found["lastState"]["terminated"]["exitCode"] == 137
    cluster.kubelet.evict("greedy")
    status = cluster.admin.get("Pod", "default", "greedy")["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "Evicted")
    cluster.admin.delete("Pod", "default", "greedy", grace_s=0)
    gone(cluster, "greedy")


def test_what_cannot_be_run_says_why(cluster: Cluster) -> None:
    cluster.admin.create(pod("nowhere", "", nodeSelector={"disk": "none"}))
    cluster.admin.create(pod("blank", "", container={"image": "missing/image"}))

    def told() -> bool:
        # A pod that the scheduler has not handled yet has no conditions.
        status = cluster.admin.get("Pod", "default", "nowhere")["status"]
        unscheduled = status.get("conditions", [{}])
        waiting = state(cluster, "blank")["state"].get("waiting", {})
        reasons = (unscheduled[0].get("reason"), waiting.get("reason"))
        return reasons == ("Unschedulable", "ImagePullBackOff")

    wait_until(told, "both reasons")
    for name in ("nowhere", "blank"):
        cluster.admin.delete("Pod", "default", name, grace_s=0)


def test_replicas_are_scaled_and_come_back_after_their_node_is_lost(cluster: Cluster) -> None:
    template = pod("", LEAVES, restartPolicy="Always")
    template["metadata"] = {"labels": {"app": "many"}}
    cluster.admin.create(
        {
            "kind": "Deployment",
            "metadata": {"name": "many"},
            "spec": {
                "replicas": 3,
                "selector": {"matchLabels": {"app": "many"}},
                "template": template,
            },
        }
    )
    found = cluster.wait_for_pods("app=many", 3)
    node = found[0]["spec"]["nodeName"]
    cluster.kubelet.lose(node)
    assert cluster.admin.get("Node", "", node)["status"]["conditions"][0]["status"] == "Unknown"
    for lost in [p for p in found if p["spec"]["nodeName"] == node]:
        cluster.admin.delete("Pod", "default", lost["metadata"]["name"], grace_s=0)
    there = cluster.wait_for_pods("app=many", 3)
    assert node not in {p["spec"]["nodeName"] for p in there}
    cluster.kubelet.boot(node)
    cluster.admin.scale("Deployment", "default", "many", 1)
    cluster.wait_for_pods("app=many", 1)
    cluster.admin.delete("Deployment", "default", "many")
    wait_until(lambda: cluster.pods("app=many") == [], "nothing of it is left")


DIES = """
import os, signal, sys
from pathlib import Path
from tests.harness.kube import ControlPlane

class Dies(ControlPlane):
    def start_api_server(self):
        os.kill(os.getpid(), signal.SIGKILL)

with Dies(Path(sys.argv[1])):
    pass
"""


def test_nothing_outlives_a_test_process_that_is_killed(tmp_path: Path) -> None:
    kube.need_api_server()
    directory = tmp_path / "control"
    died = subprocess.run(
        [sys.executable, "-c", DIES, directory], cwd=REPOSITORY, timeout=100, check=False
    )
    assert died.returncode == -signal.SIGKILL
    assert (directory / "etcd.log").exists()

    def ours() -> list[psutil.Process]:
        return [p for p in psutil.process_iter() if str(directory) in str(command_of(p))]

    wait_until(lambda: not ours(), "its processes are gone")


def command_of(process: psutil.Process) -> list[str]:
    """Returns the command line of a process; empty if the process is gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return list(process.cmdline())
    return []


def test_an_account_may_do_what_its_role_says(cluster: Cluster) -> None:
    name = {"name": "reader"}
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
    group = "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "namespace": "default", **name}
    cluster.admin.create({"kind": "ServiceAccount", "metadata": name})
    api = cluster.control.api(cluster.control.token_of("reader"))
    with pytest.raises(ApiError, match="403"):
        api.all("Pod", "default")
    cluster.admin.create({"kind": "Role", "metadata": name, "rules": [rule]})
    cluster.admin.create(
        {
            "kind": "RoleBinding",
            "metadata": name,
            "roleRef": {"apiGroup": group, "kind": "Role", **name},
            "subjects": [subject],
        }
    )

    def may_list() -> bool:
        try:
            return api.all("Pod", "default") is not None
        except ApiError:
            return False

    wait_until(may_list, "the role is known")
    with pytest.raises(ApiError, match="403"):
        api.create(pod("forbidden", ""))
    api.close()


def test_pods_run_on_while_the_api_server_is_away_and_a_watch_from_before_gets_410(
    cluster: Cluster,
) -> None:
    cluster.admin.create(pod("patient", STAYS, terminationGracePeriodSeconds=0))
    begun(cluster, "patient")
    cluster.wait_for_pods("app=patient", 1)
    listing = cluster.admin.request("GET", path_of("Pod", "default"))
    version = listing["metadata"]["resourceVersion"]
    cluster.admin.patch("Pod", "default", "patient", {"metadata": {"labels": {"more": "yes"}}})
    cluster.control.stop_api_server()
    with pytest.raises(requests.ConnectionError):
        cluster.pods()
    cluster.control.compact()
    cluster.control.start_api_server()
    path = f"{path_of('Pod', 'default')}?watch=1&resourceVersion={version}&timeoutSeconds=5"
    (told,) = watched(cluster, path)
    assert (told["type"], told["object"]["code"]) == ("ERROR", 410)
    (found,) = cluster.wait_for_pods("app=patient", 1)
    assert found["status"]["containerStatuses"][0]["restartCount"] == 0
    assert cluster.kubelet.log("patient").count("begun") == 1
    cluster.admin.delete("Pod", "default", "patient", grace_s=0)
    gone(cluster, "patient")


def watched(cluster: Cluster, path: str) -> list[Json]:
    """Returns the events of a watch until its end."""
    answer = requests.get(
        cluster.control.url + path,
        headers={"Authorization": f"Bearer {kube.ADMIN_TOKEN}"},
        verify=str(cluster.control.authority),
        timeout=60,
    )
    return [json.loads(line) for line in answer.iter_lines()]
