"""Puts the status of a pod into words about its worker. Pure: pods are JSON, as from the API."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from hvd_elastic_keras.common import control
from hvd_elastic_keras.launchers.base import exit_cause
from hvd_elastic_keras.launchers.kubernetes_pod import CONTAINER

Pod = Mapping[str, Any]
NOTHING_AGAINST_IT = ""
HARMLESS_WAITS = ("", "ContainerCreating", "PodInitializing")
IMAGE_WAITS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
DISRUPTIONS = {
    "PreemptionByScheduler": "was preempted: a pod of higher priority took its place",
    "PreemptionByKubeScheduler": "was preempted: a pod of higher priority took its place",
    "DeletionByTaintManager": "had to leave its node {node}, which went away or is not to be used",
    "EvictionByEvictionAPI": "was evicted: its node {node} is being emptied",
    "DeletionByPodGC": "is gone with its node {node}",
    "TerminationByKubelet": "was ended by its node {node}",
}
"""Texts by the reason of the condition `DisruptionTarget`."""
STOPS_OF_QUEUE = {
    "WorkloadEvicted": "was taken away by its queue",
    "WorkloadDeleted": "was taken away by its queue: its Workload was deleted",
}
"""Texts by the reason of the condition `TerminationTarget`, which Kueue sets."""
TAKEN_BY_NODE = {
    "Evicted": "was evicted by its node {node}",
    "Preempting": "was preempted on its node {node} by a pod that the cluster needs",
    "NodeLost": "is lost with its node {node}",
    "NodeShutdown": "was ended: its node {node} shuts down",
    "Shutdown": "was ended: its node {node} shuts down",
    "Terminated": "was ended: its node {node} shuts down",
    "UnexpectedAdmissionError": "was not taken by its node {node}",
    "NodeAffinity": "was not taken by its node {node}",
}
"""Texts by `status.reason` of a failed pod."""
NO_ROOM_ON_NODE = "OutOf"
_UIDS = re.compile(r" \(UID: [^)]*\)")
"""Names of other workloads, which are of no use to people who read about this job."""


@dataclasses.dataclass(frozen=True)
class Ending:
    """The end of a worker; see `launchers.base.WorkerExit`."""

    return_code: int | None
    reason: str = ""
    taken: bool = False


def pending_reason(pod: Pod) -> str | None:
    """Returns why a pod does not run yet.

    An empty text means that no obstacle is known; None means that the pod runs or has run.
    """
    status = pod.get("status") or {}
    if status.get("phase", "Pending") != "Pending" or _terminated(pod):
        return None
    if gates := (pod.get("spec") or {}).get("schedulingGates"):
        names = ", ".join(gate["name"] for gate in gates)
        return f"it is held back ({names}) until its queue lets it go"
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return f"no node takes it: {_said(scheduled) or scheduled.get('reason', 'Unschedulable')}"
    return _waiting_reason(pod)


def _waiting_reason(pod: Pod) -> str:
    status = pod.get("status") or {}
    containers = [
        *(status.get("initContainerStatuses") or []),
        *(status.get("containerStatuses") or []),
    ]
    for container in containers:
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason", "")
        if reason in IMAGE_WAITS:
            return f"its image {container.get('image')} cannot be had ({_with_detail(waiting)})"
        if reason not in HARMLESS_WAITS:
            return f"its container cannot be made ({_with_detail(waiting)})"
    return NOTHING_AGAINST_IT


def ending(pod: Pod, *, deleted_by_us: bool, gone: bool = False) -> Ending | None:
    """Returns how the worker of a pod has ended; None if it has not.

    Args:
      gone: whether the pod does not exist any more.
    """
    terminated = _terminated(pod)
    failed_as_pod = (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded")
    if not (gone or terminated or failed_as_pod):
        return None
    code = _return_code(terminated)
    deleted = gone or bool(pod["metadata"].get("deletionTimestamp"))
    why = _why_taken(pod) or (_why_deleted(pod, deleted_by_us) if deleted else "")
    if why:
        return Ending(code, why, taken=True)
    if deleted_by_us:
        return Ending(code)
    return _by_itself(pod, terminated, code)


def why_leaving(pod: Pod) -> str:
    """Returns why a worker has to leave. Its pod is being deleted, but has not ended."""
    why = _why_taken(pod)
    return f"it {why}" if why else "somebody has deleted its pod"


def lost_with_node(pod: Pod) -> Ending:
    """Returns the ending for a pod that should be gone, but whose node does not confirm that."""
    return Ending(None, f"is lost with its node {_node(pod)}, which does not answer", taken=True)


def _why_taken(pod: Pod) -> str:
    """Returns the reason for which the cluster has taken the pod; empty if it gives none."""
    status = pod.get("status") or {}
    disruption = _condition(pod, "DisruptionTarget")
    if disruption.get("status") == "True":
        reason = disruption.get("reason", "")
        text = DISRUPTIONS.get(reason, f"was taken away ({reason})")
        return _with_message(text, pod, disruption)
    stop = _condition(pod, "TerminationTarget")
    if stop.get("status") == "True":
        reason = stop.get("reason", "")
        text = STOPS_OF_QUEUE.get(reason, f"was taken away by its queue ({reason})")
        return _with_message(text, pod, {"message": _UIDS.sub("", _said(stop))})
    reason = status.get("reason") or ""
    if reason.startswith(NO_ROOM_ON_NODE):
        return f"was not taken by its node {_node(pod)} ({reason})"
    if reason in TAKEN_BY_NODE:
        return _with_message(TAKEN_BY_NODE[reason], pod, status)
    return ""


def _why_deleted(pod: Pod, deleted_by_us: bool) -> str:
    """Returns why a pod is deleted; empty if the launcher itself has deleted it."""
    if _node_is_silent(pod):
        return lost_with_node(pod).reason
    return "" if deleted_by_us else "is gone: somebody has deleted its pod"


def _by_itself(pod: Pod, terminated: Pod, code: int | None) -> Ending:
    status = pod.get("status") or {}
    last = (terminated.get("message") or "").strip().rpartition("\n")[2]
    if terminated.get("reason") == "OOMKilled":
        return Ending(code, f"ran out of memory (OOMKilled{_limit(pod)})")
    if code == control.LEFT:
        return Ending(code, "left: it was asked to", taken=True)
    if not terminated and (said := status.get("reason")):
        return Ending(code, f"failed: {_said(status) or said} ({said})")
    if code and last:
        return Ending(code, f"{exit_cause(code)}: {last}")
    return Ending(code)


def _limit(pod: Pod) -> str:
    containers = (pod.get("spec") or {}).get("containers") or []
    worker: Pod = next((c for c in containers if c.get("name") == CONTAINER), {})
    limit = ((worker.get("resources") or {}).get("limits") or {}).get("memory")
    return f"; its limit is {limit}: see resources.limits in --pod_template" if limit else ""


def _return_code(terminated: Pod) -> int | None:
    code = terminated.get("exitCode")
    return 128 - code if code is not None and code > 128 else code


def _terminated(pod: Pod) -> Pod:
    state = _worker_status(pod).get("state") or {}
    found: Pod = state.get("terminated") or {}
    return found


def _worker_status(pod: Pod) -> Pod:
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return next((s for s in statuses if s.get("name") == CONTAINER), {})


def _node_is_silent(pod: Pod) -> bool:
    """Returns whether a running pod is marked not ready.

    Without a readiness probe, the cause is then its node.
    """
    runs = "running" in (_worker_status(pod).get("state") or {})
    return runs and _condition(pod, "Ready").get("status") == "False"


def _condition(pod: Pod, kind: str) -> Pod:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return next((c for c in conditions if c.get("type") == kind), {})


def _node(pod: Pod) -> str:
    return str((pod.get("spec") or {}).get("nodeName", "")) or "(none)"


def _said(part: Pod) -> str:
    return str(part.get("message") or "").strip().rstrip(".")


def _with_detail(part: Pod) -> str:
    said = _said(part)
    return f"{part.get('reason')}: {said}" if said else str(part.get("reason"))


def _with_message(text: str, pod: Pod, part: Pod) -> str:
    said = _said(part)
    return text.format(node=_node(pod)) + (f" ({said})" if said else "")
