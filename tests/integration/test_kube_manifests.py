"""deploy/kubernetes on a real API server with its controllers: workers come and go as pods do."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests.harness import faults, kube
from tests.harness.faults import Fault
from tests.harness.job import assert_same_weights
from tests.harness.kube import Cluster
from tests.harness.kube_job import KubeJob

WORKERS = "role=worker"
OF_THE_JOB = f"{WORKERS},job-name"
OF_THE_DEPLOYMENT = f"{WORKERS},!job-name"


def gate(name: str, step: int) -> Fault:
    """Returns a fault that holds rank 0 until the test opens the gate."""
    return Fault(name, "train", rank=0, step=step, action="wait")


def wait_for_ready(job: KubeJob, count: int) -> None:
    """Waits until this many workers have been ready."""
    job.wait(lambda: len(job.events("worker_ready")) >= count or None, f"{count} were ready")


def latest_round(job: KubeJob) -> int:
    return int(job.events("round_running")[-1]["round"])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_pods_are_scaled_deleted_and_killed_and_the_master_is_and_nothing_is_lost(
    tmp_path: Path, expected_weights: dict[str, np.ndarray]
) -> None:
    kube.need_cluster()
    steps = {"start": 2, "up": 5, "down": 9, "forced": 13, "master": 17}
    plan = [gate(name, step) for name, step in steps.items()]
    environment = {
        "PYTHONPATH": os.environ["PYTHONPATH"],
        "TMPDIR": str(tmp_path / "tmp"),
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        faults.FILE: str(faults.FaultPlan(tmp_path / "faults").path),
    }
    with (
        Cluster(tmp_path, environment, nodes=2) as cluster,
        KubeJob(cluster, tmp_path, "--audit", plan=plan) as job,
    ):
        admin = cluster.admin
        for name, count in (("workers.yaml", 2), ("workers-job.yaml", 1)):
            for manifest in job.manifests(name):
                key = "replicas" if manifest["kind"] == "Deployment" else "parallelism"
                manifest["spec"][key] = count
                job.apply(manifest)
        job.wait_for("job_started")
        job.wait_for("worker_ready")
        job.wait_for_fault("start")
        wait_for_ready(job, 3)
        job.plan.open_gate("start")
        job.wait_for_round(3)

        job.wait_for_fault("up")
        admin.scale("Deployment", "default", "elastic-workers", 3)
        wait_for_ready(job, 4)
        job.plan.open_gate("up")
        job.wait_for_round(4)

        job.wait_for_fault("down")
        before = latest_round(job)
        admin.scale("Deployment", "default", "elastic-workers", 1)
        job.wait(lambda: len(job.events("slots_revoked")) == 2 or None, "two workers leave")
        job.plan.open_gate("down")
        job.wait_for_round(2, before)
        cluster.wait_for_pods(WORKERS, 2)

        job.wait_for_fault("forced")
        (single,) = cluster.pods(OF_THE_JOB)
        admin.delete("Pod", "default", single["metadata"]["name"], grace_s=0)
        job.plan.open_gate("forced")

        job.wait_for_fault("master")
        wait_for_ready(job, 5)
        first = job.master()
        admin.delete("Pod", "default", first, grace_s=0)
        job.wait_for("master_restarted")
        assert job.master() != first
        job.plan.open_gate("master")
        job.finished()

        assert_same_weights(job.weights(), expected_weights)
        job.assert_audited(3)
        assert all(e["steps_lost"] == 0 for e in job.events("round_running"))
        assert sum(e["failed"] for e in job.events("worker_exited")) <= 1, "but for who was killed"
        cluster.wait_for_pods(OF_THE_JOB, 1, "Succeeded")
        (resting,) = cluster.wait_for_pods(OF_THE_DEPLOYMENT, 1)
        assert "exit code 0: this pod waits" in cluster.kubelet.log(resting["metadata"]["name"])
        assert resting["status"]["containerStatuses"][0]["restartCount"] == 0
        job.remove()
