"""deploy/kubernetes/launcher.yaml on a real API server: the master in a pod makes worker pods."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from hvd_elastic_keras.launchers.kubernetes_pod import JOB_LABEL, WORKER_LABEL
from tests.harness import faults, kube
from tests.harness.faults import Fault
from tests.harness.job import assert_same_weights
from tests.harness.kube import Cluster
from tests.harness.kube_job import LaunchedKubeJob

SECRET = "elastic"
"""The name of the job in the files."""


def gate(name: str, step: int) -> Fault:
    """Returns a fault that holds rank 0 until the test opens the gate."""
    return Fault(name, "train", rank=0, step=step, action="wait")


def image_of(directory: Path) -> dict[str, str]:
    return {
        "PYTHONPATH": os.environ["PYTHONPATH"],
        "TMPDIR": str(directory / "tmp"),
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_NUM_INTRAOP_THREADS": "1",
        faults.FILE: str(faults.FaultPlan(directory / "faults").path),
    }


def uids(cluster: Cluster) -> dict[str, str]:
    """Returns the uids of the workers' pods: another pod of the same name has another uid."""
    pods = cluster.wait_for_pods(JOB_LABEL, 2)
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}


def secrets_of_jobs(cluster: Cluster) -> list[str]:
    found = cluster.admin.all("Secret", "default", JOB_LABEL)
    return [secret["metadata"]["name"] for secret in found]


def test_workers_are_asked_for_and_sent_away_and_the_pod_of_the_master_is_killed_and_back(
    tmp_path: Path, expected_weights: dict[str, np.ndarray]
) -> None:
    kube.need_cluster()
    pytest.importorskip("kubernetes")
    plan = [gate("first", 2), gate("master", 10), gate("alone", 14)]
    flags = ("--num_workers=2", "--audit", "--heartbeat_timeout_s=60")
    with (
        Cluster(tmp_path, image_of(tmp_path), nodes=2) as cluster,
        LaunchedKubeJob(cluster, tmp_path, *flags, plan=plan) as job,
    ):
        job.wait_for("job_started")
        job.ctl_in_pod("add", "1")
        job.wait_for_fault("first")
        job.wait_for("worker_ready", lambda e: e["worker_id"] == "w2")
        job.ctl_in_pod("remove", "w1")
        job.plan.open_gate("first")
        job.wait_for("worker_exited", lambda e: e["worker_id"] == "w1")

        job.wait_for_fault("master")
        before, first = uids(cluster), job.master()
        assert set(before) == {"elastic-w0", "elastic-w2"}
        (owner,) = cluster.admin.get("Secret", "default", SECRET)["metadata"]["ownerReferences"]
        kept_up_by = cluster.admin.get("Job", "default", job.MASTER)
        assert (owner["kind"], owner["uid"]) == ("Job", kept_up_by["metadata"]["uid"])
        cluster.admin.delete("Pod", "default", first, grace_s=0)
        taken_over = job.wait_for("master_restarted")
        assert set(taken_over["workers"]) == {"w0", "w2"}
        assert job.master() != first
        assert uids(cluster) == before
        job.ctl_in_pod("revoke", "--slots=1")
        job.plan.open_gate("master")
        job.wait_for("worker_exited", lambda e: e["worker_id"] in ("w0", "w2"))

        job.wait_for_fault("alone")
        cluster.wait_for_pods(JOB_LABEL, 1)
        job.ctl_in_pod("grant", "--slots=1")
        cluster.wait_for_pods(f"{WORKER_LABEL}=w3", 1)
        job.plan.open_gate("alone")
        job.finished()

        assert_same_weights(job.weights(), expected_weights)
        job.assert_audited(3)
        assert all(e["steps_lost"] == 0 for e in job.events("round_running"))
        failed = {e["worker_id"] for e in job.events("worker_exited") if e["failed"]}
        assert failed <= {"w3"}, "which was starting when the job ended"
        started = [e["worker_id"] for e in job.events("worker_started")]
        assert sorted(started) == ["w0", "w1", "w2", "w3"]
        cluster.wait_for_pods("", 1, "Succeeded")
        assert secrets_of_jobs(cluster) == []
        job.remove()
