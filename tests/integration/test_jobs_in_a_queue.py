"""Jobs whose pods a queue admits, takes for jobs of higher priority, and gives back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hvd_elastic_keras.launchers.kubernetes_pod import WORKER_LABEL
from tests.harness.faults import Fault
from tests.harness.hosts import wait_until
from tests.harness.job import Event, Job
from tests.harness.kube import ADMIN_TOKEN, Cluster
from tests.harness.kueue import HIGH, PRIORITY, QUEUE, QUEUE_LABEL, SCHEDULER, Kueue, important_pod
from tests.integration.test_jobs_in_pods import NAMESPACE, OF_JOBS, assert_whole, job_in
from tests.integration.test_jobs_in_pods import cluster as cluster  # noqa: PLC0414
from tests.integration.test_jobs_in_pods import kubeconfig as kubeconfig  # noqa: PLC0414

QUOTA = 4
LEAST = 2


@pytest.fixture
def kueue(cluster: Cluster) -> Iterator[Kueue]:
    api = cluster.control.api(ADMIN_TOKEN)
    with Kueue(api, tuple(cluster.hosts.names), QUOTA) as made:
        yield made


def held(name: str, size: int) -> Fault:
    """Returns a fault that holds rank 0 in the next step that this many workers take."""
    return Fault(name, "train", rank=0, action="wait", size=size)


def queued_job(cluster: Cluster, directory: Path, plan: list[Fault], *flags: str) -> Job:
    ours = (f"--num_workers={QUOTA}", f"--min_workers={LEAST}", f"--queue={QUEUE}")
    return job_in(cluster, directory, *ours, *flags, plan=plan, schedulerName=SCHEDULER)


def take(cluster: Cluster, count: int) -> None:
    """Asks for pods of higher priority."""
    for number in range(count):
        cluster.admin.create(important_pod(f"important-{number}"))


def give_back(cluster: Cluster) -> None:
    """Ends the pods of higher priority."""
    selector = f"{PRIORITY}={HIGH}"
    for pod in cluster.pods(selector):
        cluster.admin.delete("Pod", NAMESPACE, pod["metadata"]["name"])
    wait_until(lambda: not cluster.pods(selector), "the pods of the other job are gone")


def told_to_leave(cluster: Cluster) -> list[str]:
    """Returns the workers whose pods are being deleted but have not ended."""
    pods = cluster.pods(f"{OF_JOBS},{QUEUE_LABEL}={QUEUE}")
    return [
        pod["metadata"]["labels"][WORKER_LABEL]
        for pod in pods
        if "deletionTimestamp" in pod["metadata"] and pod["status"]["phase"] == "Running"
    ]


def waiting(cluster: Cluster) -> list[str]:
    """Returns the workers whose pods the queue has not admitted."""
    pods = [p for p in cluster.pods(OF_JOBS) if "nodeName" not in p["spec"]]
    return [pod["metadata"]["labels"][WORKER_LABEL] for pod in pods]


def running(job: Job, size: int) -> Event:
    """Returns the newest round, which is known to have this many workers."""

    def newest() -> Event | None:
        rounds = job.events("round_running")
        return rounds[-1] if rounds and rounds[-1]["world_size"] == size else None

    found: Event = job.wait(newest, f"a round of {size}")
    return found


def grow(job: Job, gate: str, size: int, gates: dict[int, str]) -> None:
    """Opens a gate whenever a worker waits to join, until the last of `gates` holds the job.

    Args:
      gate: the gate that holds the job now, in a round of `size` workers.
      gates: the gates to come, by the number of workers.
    """
    last = max(gates)
    while size < last:
        at = running(job, size)["round"]
        job.wait_for("round_opened", lambda e, at=at: e["round"] > at)
        job.plan.open_gate(gate)
        larger = range(size + 1, last + 1)
        size = job.wait(
            lambda sizes=larger: next((s for s in sizes if job.plan.happened(gates[s])), None),
            "a larger round",
        )
        gate = gates[size]


def cycle_through(job: Job, cluster: Cluster, workers: int, least: int, cycles: int) -> str:
    """Has the queue take all workers beyond the least number and give them back.

    Returns:
      The gate that holds the job, in a round of all workers.
    """
    taken = workers - least
    full = "start"
    for cycle in range(cycles):
        job.wait_for_fault(full)
        members = set(running(job, workers)["members"])
        take(cluster, taken)
        wait_until(lambda: len(told_to_leave(cluster)) == taken, "pods are told to leave")
        leaving = set(told_to_leave(cluster))
        few = f"few {cycle}"
        job.plan.write([held(few, least)])
        job.plan.open_gate(full)
        job.wait_for_fault(few)
        assert set(running(job, least)["members"]) == members - leaving
        assert len(cluster.wait_for_pods(f"{PRIORITY}={HIGH}", taken)) == taken
        give_back(cluster)
        gates = {size: f"{size} in {cycle}" for size in range(least + 1, workers + 1)}
        job.plan.write([held(name, size) for size, name in gates.items()])
        full = gates[workers]
        grow(job, few, least, gates)
    job.plan.write([])
    return full


def assert_nothing_was_lost(job: Job) -> None:
    """Asserts that each worker left in order, and that no step was taken twice."""
    assert [e for e in job.events("worker_exited") if e["failed"]] == []
    assert all(e["steps_lost"] == 0 for e in job.events("round_running"))


def test_workers_are_taken_and_given_back_and_at_last_all_are_taken_and_no_step_is_lost(
    cluster: Cluster, kueue: Kueue, tmp_path: Path, expected_weights: dict[str, np.ndarray]
) -> None:
    beyond = QUOTA - LEAST
    with queued_job(cluster, tmp_path, [held("start", QUOTA)]) as job:
        gate = cycle_through(job, cluster, QUOTA, LEAST, cycles=1)
        take(cluster, beyond + 1)  # so that only one of the group's pods would have room
        wait_until(lambda: len(told_to_leave(cluster)) == QUOTA, "all are told to leave")
        job.plan.open_gate(gate)
        assert len(cluster.wait_for_pods(f"{PRIORITY}={HIGH}", beyond + 1)) == beyond + 1
        # One pod beyond the group still has room, but the training needs two.
        wait_until(lambda: len(waiting(cluster)) == beyond + 1, "new pods wait for the queue")
        give_back(cluster)
        assert_whole(job, cluster, expected_weights)
        assert_nothing_was_lost(job)
        causes = [e["cause"] for e in job.events("worker_exited")]
    assert (kueue.evicted, kueue.most, kueue.excess) == (beyond + beyond + 1, QUOTA, [])
    why = "it was taken away by its queue (Preempted to accommodate a workload"
    assert sum(why in cause for cause in causes) == beyond + QUOTA
