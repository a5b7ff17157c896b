"""What people are told of a pod, for each state that a real cluster has shown."""

from __future__ import annotations

from typing import Any

import pytest

from hvd_elastic_keras.launchers.kubernetes_reasons import (
    Ending,
    ending,
    lost_with_node,
    pending_reason,
    why_leaving,
)

Pod = dict[str, Any]
DELETED = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


def condition(kind: str, status: str, reason: str = "", message: str = "") -> Pod:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def container(**state: Any) -> list[Pod]:
    return [{"name": "worker", "image": "registry/image", "state": state}]


def ended(code: int, reason: str = "Error", message: str = "") -> list[Pod]:
    return container(terminated={"exitCode": code, "reason": reason, "message": message})


def pod(metadata: Pod | None = None, spec: Pod | None = None, **status: Any) -> Pod:
    return {
        "metadata": metadata or {},
        "spec": {"nodeName": "node7", **(spec or {})},
        "status": {"phase": "Pending", **status},
    }


def preempted(**status: Any) -> Pod:
    said = condition("DisruptionTarget", "True", "PreemptionByScheduler")
    return pod(DELETED, phase="Failed", conditions=[said], **status)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (pod(), ""),
        (pod(conditions=[condition("PodScheduled", "True")]), ""),
        (pod(containerStatuses=container(waiting={"reason": "ContainerCreating"})), ""),
        (pod(phase="Running", containerStatuses=container(running={})), None),
        (pod(phase="Failed"), None),
        (pod(containerStatuses=ended(1)), None),
        (
            pod(
                conditions=[
                    condition(
                        "PodScheduled",
                        "False",
                        "Unschedulable",
                        "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
                    )
                ]
            ),
            "no node takes it: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu",
        ),
        (
            pod(spec={"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}),
            "it is held back (kueue.x-k8s.io/admission) until its queue lets it go",
        ),
        (
            pod(
                containerStatuses=container(
                    waiting={"reason": "ImagePullBackOff", "message": "not found"}
                )
            ),
            "its image registry/image cannot be had (ImagePullBackOff: not found)",
        ),
        (
            pod(
                initContainerStatuses=container(
                    waiting={
                        "reason": "CreateContainerConfigError",
                        "message": 'secret "s" not found',
                    }
                )
            ),
            'its container cannot be made (CreateContainerConfigError: secret "s" not found)',
        ),
    ],
)
def test_why_a_pod_does_not_run(state: Pod, reason: str | None) -> None:
    assert pending_reason(state) == reason


NODE_SILENT = pod(
    DELETED,
    phase="Running",
    conditions=[condition("Ready", "False")],
    containerStatuses=container(running={}),
)


@pytest.mark.parametrize(
    ("state", "end"),
    [
        (pod(phase="Running", containerStatuses=container(running={})), None),
        (pod(phase="Succeeded", containerStatuses=ended(0)), Ending(0)),
        (pod(phase="Failed", containerStatuses=ended(137)), Ending(-9)),
        (pod(phase="Failed", containerStatuses=ended(3)), Ending(3)),
        (
            pod(phase="Failed", containerStatuses=ended(93, message="x\nerror: no model\n")),
            Ending(93, "failed with exit code 93: error: no model"),
        ),
        (
            pod(
                spec={
                    "containers": [{"name": "worker", "resources": {"limits": {"memory": "1Gi"}}}]
                },
                phase="Failed",
                containerStatuses=ended(137, "OOMKilled"),
            ),
            Ending(
                -9,
                "ran out of memory (OOMKilled; its limit is 1Gi: see resources.limits in "
                "--pod_template)",
            ),
        ),
        (
            pod(phase="Failed", containerStatuses=ended(137, "OOMKilled")),
            Ending(-9, "ran out of memory (OOMKilled)"),
        ),
        (
            pod(phase="Failed", containerStatuses=ended(75)),
            Ending(75, "left: it was asked to", taken=True),
        ),
        (
            preempted(containerStatuses=ended(137, "OOMKilled")),
            Ending(-9, "was preempted: a pod of higher priority took its place", taken=True),
        ),
        (
            pod(phase="Failed", reason="Evicted", message="The node was low on memory."),
            Ending(None, "was evicted by its node node7 (The node was low on memory)", taken=True),
        ),
        (
            pod(phase="Failed", reason="OutOfcpu", message="no room"),
            Ending(None, "was not taken by its node node7 (OutOfcpu)", taken=True),
        ),
        (
            pod(phase="Failed", reason="DeadlineExceeded", message="active too long"),
            Ending(None, "failed: active too long (DeadlineExceeded)"),
        ),
        (
            pod(DELETED, phase="Failed", containerStatuses=ended(75)),
            Ending(75, "is gone: somebody has deleted its pod", taken=True),
        ),
    ],
)
def test_how_a_worker_has_ended(state: Pod, end: Ending | None) -> None:
    assert ending(state, deleted_by_us=False) == end


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("DeletionByTaintManager", "had to leave its node node7, which went away"),
        ("EvictionByEvictionAPI", "was evicted: its node node7 is being emptied"),
        ("DeletionByPodGC", "is gone with its node node7"),
        ("TerminationByKubelet", "was ended by its node node7"),
        ("SomethingNew", "was taken away (SomethingNew)"),
    ],
)
def test_a_disruption_is_told_before_all_else(reason: str, told: str) -> None:
    said = condition("DisruptionTarget", "True", reason, "the details.")
    end = ending(pod(conditions=[said], phase="Failed"), deleted_by_us=False)
    assert end
    assert end.taken
    assert end.reason.startswith(told)
    assert end.reason.endswith("(the details)")


@pytest.mark.parametrize(
    ("reason", "message", "told"),
    [
        (
            "WorkloadEvicted",
            "Preempted to accommodate a workload (UID: 1-2, JobUID: UNKNOWN) due to "
            "prioritization in the ClusterQueue",
            "was taken away by its queue (Preempted to accommodate a workload due to "
            "prioritization in the ClusterQueue)",
        ),
        (
            "WorkloadDeleted",
            "The workload is deleted",
            "was taken away by its queue: its Workload was deleted (The workload is deleted)",
        ),
        ("NotAdmitted", "", "was taken away by its queue (NotAdmitted)"),
    ],
)
def test_a_queue_says_why_it_takes_a_pod(reason: str, message: str, told: str) -> None:
    said = [condition("TerminationTarget", "True", reason, message)]
    runs = pod(DELETED, conditions=said, containerStatuses=container(running={}))
    assert why_leaving(runs) == f"it {told}"
    has_ended = pod(DELETED, conditions=said, phase="Failed", containerStatuses=ended(75))
    assert ending(has_ended, deleted_by_us=False) == Ending(75, told, taken=True)


def test_a_pod_that_is_no_more_was_deleted_by_somebody() -> None:
    running = pod(phase="Running", containerStatuses=container(running={}))
    end = ending(running, deleted_by_us=False, gone=True)
    assert end == Ending(None, "is gone: somebody has deleted its pod", taken=True)


def test_what_the_launcher_deletes_itself_is_not_taken_from_it() -> None:
    for state in (pod(DELETED, phase="Failed", containerStatuses=ended(137)), pod()):
        end = ending(state, deleted_by_us=True, gone=True)
        assert end
        assert (end.reason, end.taken) == ("", False)


def test_a_silent_node_is_told_also_if_the_launcher_has_given_the_worker_up() -> None:
    for deleted_by_us in (True, False):
        end = ending(NODE_SILENT, deleted_by_us=deleted_by_us, gone=True)
        assert end == lost_with_node(NODE_SILENT)
    assert lost_with_node(NODE_SILENT).taken


def test_why_a_worker_has_to_leave_is_said_before_its_end() -> None:
    running = container(running={})
    assert why_leaving(pod(DELETED, containerStatuses=running)) == "somebody has deleted its pod"
    said = why_leaving(preempted(containerStatuses=running))
    assert said == "it was preempted: a pod of higher priority took its place"


def test_a_preempted_worker_is_one_also_if_the_launcher_deletes_it_then() -> None:
    end = ending(preempted(), deleted_by_us=True, gone=True)
    assert end
    assert end.taken
