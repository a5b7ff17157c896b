"""Jobs whose workers are pods of a real Kubernetes end with the result of one process."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hvd_elastic_keras.launchers.kubernetes_pod import JOB_LABEL
from tests.harness import kube
from tests.harness.faults import FILE, Fault
from tests.harness.hosts import wait_until
from tests.harness.job import LIMIT_S, Job, assert_same_weights
from tests.harness.kube import Cluster
from tests.harness.kube_api import Json

NAMESPACE = "default"
OF_JOBS = JOB_LABEL


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    kube.need_cluster()
    pytest.importorskip("kubernetes")
    image = {"PYTHONPATH": os.environ["PYTHONPATH"], "TF_NUM_INTRAOP_THREADS": "1"}
    with Cluster(tmp_path_factory.mktemp("cluster"), image) as made:
        wait_until(lambda: not any(map(taints, made.admin.all("Node"))), "the nodes take pods")
        yield made


def taints(node: Json) -> list[Json]:
    found: list[Json] = node["spec"].get("taints", [])
    return found


@pytest.fixture(autouse=True)
def kubeconfig(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cluster.control.kubeconfig()))


def job_in(cluster: Cluster, directory: Path, *flags: str, plan: list[Fault], **spec: Any) -> Job:
    """Returns a job whose pods let its faults happen."""
    template = directory / "template.yaml"
    job = Job(
        directory,
        "--launcher=kubernetes",
        "--image=any",
        "--job_name=train",
        f"--pod_template={template}",
        f"--bind={cluster.hosts.launcher}",
        "--audit",
        *flags,
        plan=plan,
    )
    variable = {"name": FILE, "value": str(job.plan.path)}
    worker = {"name": "worker", "env": [variable]}
    template.write_text(json.dumps({"containers": [worker], **spec}))
    return job


def gate(name: str, step: int) -> Fault:
    """Returns a fault that holds rank 0 until the test opens the gate."""
    return Fault(name, "train", rank=0, step=step, action="wait")


def assert_whole(job: Job, cluster: Cluster, expected: dict[str, np.ndarray]) -> None:
    """Asserts the result of one process, each example used once, and nothing left."""
    job.process.wait(LIMIT_S)
    wait_until(lambda: not job.worker_processes(), "the nodes have ended the last pods")
    job.finish()
    assert_same_weights(job.weights(), expected)
    job.assert_audited(epochs=3)
    assert cluster.admin.find("Secret", NAMESPACE, "train") is None
    wait_until(lambda: cluster.pods(OF_JOBS) == [], "no pod is left")


@pytest.mark.slow
def test_pods_are_deleted_and_the_master_is_killed_and_no_step_is_lost(
    cluster: Cluster, tmp_path: Path, expected_weights: dict[str, np.ndarray]
) -> None:
    plan = [gate("first", 6), gate("second", 14)]
    with job_in(cluster, tmp_path, "--num_workers=3", plan=plan) as job:
        job.wait_for_fault("first")
        root, asked, killed = job.wait_for_round(3)["members"]
        cluster.admin.delete("Pod", NAMESPACE, f"train-{asked}")
        job.wait_for("slots_revoked")
        job.plan.open_gate("first")
        job.wait_for_fault("second")
        job.kill_launcher()
        before = uids(cluster, root, killed)
        job.start_launcher("--resume")
        taken_over = job.wait_for("master_restarted")
        assert {root, killed} <= set(taken_over["workers"])
        assert uids(cluster, root, killed) == before
        cluster.admin.delete("Pod", NAMESPACE, f"train-{killed}", grace_s=0)
        job.wait_for("worker_exited", lambda e: e["worker_id"] == killed)
        job.plan.open_gate("second")
        assert_whole(job, cluster, expected_weights)
        exits = {e["worker_id"]: e for e in job.events("worker_exited")}
        # The worker itself or the API server may have reported it first.
        assert exits[asked]["cause"] in ("left: SIGTERM", "left: somebody has deleted its pod")
        assert exits[killed]["cause"] == "is gone: somebody has deleted its pod"
        assert [e for e in exits.values() if e["failed"]] == []
        assert all(e["steps_lost"] == 0 for e in job.events("round_running"))
        started = [e["worker_id"] for e in job.events("worker_started")]
        assert len(started) == len(set(started)) == 5, "both were replaced, and nobody else"


def uids(cluster: Cluster, *worker_ids: str) -> list[str]:
    """Returns the uids of the workers' pods: another pod of the same name has another uid."""
    pods = [cluster.admin.get("Pod", NAMESPACE, f"train-{worker_id}") for worker_id in worker_ids]
    return [pod["metadata"]["uid"] for pod in pods]
