"""What the API server is asked for, and what a template may say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.launchers import kubernetes_pod as pods
from hvd_elastic_keras.launchers.kubernetes_pod import PodSettings

ARGUMENTS = ["--join=10.0.0.1:7000", "--worker_id=w3"]


def settings(**values: Any) -> PodSettings:
    return PodSettings("mnist", "0123", "registry/image:1", "team", **values)


def pod(**values: Any) -> dict[str, Any]:
    return pods.manifest(settings(**values), "w3", ARGUMENTS, None)


def worker_of(manifest: dict[str, Any]) -> dict[str, Any]:
    (found,) = [c for c in manifest["spec"]["containers"] if c["name"] == "worker"]
    return dict(found)


def test_a_pod_has_a_name_that_every_master_of_the_job_knows() -> None:
    metadata = pod()["metadata"]
    assert (metadata["name"], metadata["namespace"]) == ("mnist-w3", "team")
    assert metadata["labels"][pods.JOB_LABEL] == "0123"
    assert pods.belongs_to(settings(), "w3", pod())
    assert not pods.belongs_to(settings(), "w4", pod())
    other = PodSettings("mnist", "other", "registry/image:1", "team")
    assert not pods.belongs_to(other, "w3", pod())


def test_a_pod_runs_a_joiner_and_is_not_started_again_by_its_node() -> None:
    spec = pod(grace_period_s=90)["spec"]
    worker = worker_of(pod())
    assert worker["command"] + worker["args"] == [
        *("python", "-m", "hvd_elastic_keras.run"),
        *ARGUMENTS,
    ]
    assert spec["restartPolicy"] == "Never"
    assert spec["terminationGracePeriodSeconds"] == 90
    assert spec["automountServiceAccountToken"] is False


def test_the_token_comes_from_the_secret_of_the_job() -> None:
    spec = pod()["spec"]
    assert spec["volumes"] == [{"name": pods.TOKEN_VOLUME, "secret": {"secretName": "mnist"}}]
    (mount,) = worker_of(pod())["volumeMounts"]
    assert mount == {
        "name": pods.TOKEN_VOLUME,
        "mountPath": "/var/run/hvd-elastic",
        "readOnly": True,
    }


def test_a_queue_and_a_service_account_and_an_owner_are_named_where_they_are_given() -> None:
    owner = pods.owner_reference({"metadata": {"name": "mnist", "uid": "u"}}, "Secret")
    made = pods.manifest(settings(queue="spot", service_account="me"), "w3", [], owner)
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "spot"
    assert made["spec"]["serviceAccountName"] == "me"
    assert made["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Secret", "name": "mnist", "uid": "u"}
    ]
    assert "kueue.x-k8s.io/queue-name" not in pod()["metadata"]["labels"]
    assert "serviceAccountName" not in pod()["spec"]


def test_a_template_is_merged_with_what_the_launcher_says() -> None:
    spec = {
        "nodeSelector": {"pool": "spot"},
        "automountServiceAccountToken": True,
        "volumes": [{"name": "data", "emptyDir": {}}],
        "containers": [
            {
                "name": "worker",
                "command": ["/venv/bin/python"],
                "resources": {"limits": {"memory": "2Gi"}},
                "env": [{"name": "A", "value": "b"}],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            },
            {"name": "sidecar", "image": "other"},
        ],
    }
    template = pods.check_template(spec)
    before = json.dumps(template)
    made = pod(template=template)
    worker = worker_of(made)
    assert made["spec"]["nodeSelector"] == {"pool": "spot"}
    assert made["spec"]["automountServiceAccountToken"] is True
    assert [v["name"] for v in made["spec"]["volumes"]] == ["data", pods.TOKEN_VOLUME]
    assert worker["resources"] == {"limits": {"memory": "2Gi"}}
    assert worker["command"] == ["/venv/bin/python"]
    assert worker["env"] == [{"name": "A", "value": "b"}]
    assert [m["name"] for m in worker["volumeMounts"]] == ["data", pods.TOKEN_VOLUME]
    assert [c["name"] for c in made["spec"]["containers"]] == ["worker", "sidecar"]
    assert json.dumps(template) == before


def test_a_whole_pod_is_a_template_too() -> None:
    spec = {"nodeName": "a"}
    expected = {"metadata": {}, "spec": spec}
    assert pods.check_template({"kind": "Pod", "spec": spec}) == expected
    assert pods.check_template(spec) == expected
    assert pods.check_template({"metadata": None, "spec": spec}) == expected
    labels = {"metadata": {"labels": {"team": "vision"}}}
    assert pods.check_template(labels) == {**labels, "spec": {}}


def test_labels_and_annotations_of_a_template_are_those_of_the_pods() -> None:
    metadata = {
        "labels": {"team": "vision", "sidecar.istio.io/inject": "false"},
        "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
    }
    template = pods.check_template({"metadata": metadata, "spec": {"nodeName": "a"}})
    made = pod(template=template, queue="spot")
    ours = settings(queue="spot").labels("w3")
    assert made["metadata"]["labels"] == {**metadata["labels"], **ours}
    assert made["metadata"]["annotations"] == metadata["annotations"]
    assert made["spec"]["nodeName"] == "a"
    assert made["metadata"]["name"] == "mnist-w3"


@pytest.mark.parametrize(
    ("template", "told"),
    [
        (None, "--pod_template has NoneType"),
        ([], "--pod_template has list"),
        ({"spec": "text"}, "--pod_template has str"),
        ({"restartPolicy": "Always"}, "has restartPolicy, which the launcher decides"),
        ({"containers": [{"name": "worker", "args": ["-c"]}]}, "has worker.args"),
        ({"containers": [{"image": "a"}]}, "an entry without a name in containers"),
        ({"containers": "worker"}, "has str in containers"),
        ({"volumes": [3]}, "has int in volumes"),
        ({"volumes": {"name": "a"}}, "has str in volumes"),
        ({"containers": [{"name": "worker", "volumeMounts": [[]]}]}, "in volumeMounts"),
        ({"metadata": "text"}, "has str as metadata"),
        ({"metadata": {"name": "mine"}, "spec": {}}, "has metadata.name, which the launcher"),
        ({"metadata": {"labels": {pods.JOB_LABEL: "1"}}}, "has the label hvd-elastic-keras/job-id"),
        ({"kind": "Pod", "spec": {}, "status": {}}, "has status, which the launcher decides"),
        ({"spec": None}, "has NoneType as spec"),
        ({"metadata": {"labels": ["team"]}}, "has list as metadata.labels"),
        ({"metadata": {"annotations": "a=b"}}, "has str as metadata.annotations"),
        ({"kind": "Deployment", "spec": {"replicas": 2}}, "has a Deployment, expected a Pod"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused(template: object, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        pods.check_template(template)


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("resnet50", "resnet50-01234567"),
        ("My_Model.v2", "my-model-v2-01234567"),
        ("2_layers", "j-2-layers-01234567"),
        ("x" * 80, "x" * 41 + "-01234567"),
        ("日本", "job-01234567"),
    ],
)
def test_any_name_becomes_one_that_kubernetes_takes(name: str, made: str) -> None:
    assert pods.job_name(name, "0123456789") == made
    pods.check_job_name(made)


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a-", "1a", "a" * 51])
def test_a_name_that_kubernetes_does_not_take_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="small letters"):
        pods.check_job_name(name)
