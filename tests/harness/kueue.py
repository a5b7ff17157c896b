"""A small stand-in for Kueue on a test's cluster: one queue of plain pods, with a quota of pods.

It is written after the source of Kueue's `pkg/controller/jobs/pod` of August 2026, and does to pods
what that does: finalizer, groups, excess and replaced pods, eviction by the condition
`TerminationTarget` and deletion, preemption by priority, last admitted first. Two things differ,
because the tests' Kubernetes 1.20 has no scheduling gates and no Workloads:

* Pods that name the scheduler `SCHEDULER` wait. Kueue itself then gives them to a node.
* Workloads are kept in memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator

from tests.harness.kube_api import STRATEGIC, Api, ApiError, Controller, Json, path_of
from tests.harness.kubelet import now

NAMESPACE = "default"
QUEUE = "spot"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
MANAGED = "kueue.x-k8s.io/managed"
GROUP = "kueue.x-k8s.io/pod-group-name"
GROUP_SIZE = "kueue.x-k8s.io/pod-group-total-count"
RETRIABLE = "kueue.x-k8s.io/retriable-in-group"
PRIORITY = "kueue.x-k8s.io/priority-class"
HIGH = "high"
SCHEDULER = "kueue"
PREEMPTED = (
    "Preempted to accommodate a workload (UID: {}, JobUID: UNKNOWN) due to prioritization in the "
    "ClusterQueue"
)


@dataclasses.dataclass
class Workload:
    """Pods that are admitted together.

    Attributes:
      number: its place in the order of creation.
      admitted: its place in the order of admissions; 0 if it is not admitted.
      stopping: whether it was evicted, and pods of it still run.
    """

    name: str
    number: int
    size: int
    is_group: bool
    priority: int
    admitted: int = 0
    stopping: bool = False
    pods: list[Json] = dataclasses.field(default_factory=list)

    @property
    def active(self) -> list[Json]:
        """The pods that can run, run, or have succeeded."""
        return [pod for pod in self.pods if _is_active(pod)]

    @property
    def holds(self) -> int:
        """The part of the quota that it takes."""
        return self.size if self.admitted or self.stopping else 0


class Kueue(Controller):
    """Admits pods from the start of a `with` block to its end.

    Args:
      api: the API for an account that may do everything; it is closed at the end.
      nodes: the nodes that pods are given to, in turn.
      quota: number of pods that may run at the same time.

    Attributes:
      most: the largest number of pods that ran at the same time.
      excess: names of pods that were deleted because their group was complete.
      evicted: number of evicted workloads.
    """

    def __init__(self, api: Api, nodes: tuple[str, ...], quota: int) -> None:
        super().__init__(api)
        self._nodes = itertools.cycle(nodes)
        self._quota = quota
        self._workloads: dict[str, Workload] = {}
        self._numbers = itertools.count(1)
        self._admissions = itertools.count(1)
        self.most = 0
        self.excess: list[str] = []
        self.evicted = 0

    def _look(self) -> None:
        pods = self._api.all("Pod", NAMESPACE, f"{QUEUE_LABEL}={QUEUE}")
        for pod in pods:
            self._take_charge(pod)
        running = [p for p in pods if p["spec"].get("nodeName") and not _is_over(p)]
        self.most = max(self.most, len(running))
        self._sort(pods)
        for workload in list(self._workloads.values()):
            self._follow(workload)
        waits_for = 0
        for workload in sorted(self._workloads.values(), key=lambda w: (-w.priority, w.number)):
            if self._is_waiting(workload) and not self._admit(workload, waits_for):
                waits_for += workload.size

    def _take_charge(self, pod: Json) -> None:
        """Does what the webhook of Kueue does before a pod is created."""
        if MANAGED not in pod["metadata"]["labels"] and not _is_deleted(pod):
            self._change(pod, {"labels": {MANAGED: "true"}, "finalizers": [MANAGED]})

    def _sort(self, pods: list[Json]) -> None:
        """Gives the pods to their workloads."""
        for workload in self._workloads.values():
            workload.pods = []
        for pod in sorted(pods, key=lambda p: p["metadata"]["creationTimestamp"]):
            labels, annotations = _texts(pod, "labels"), _texts(pod, "annotations")
            group = labels.get(GROUP)
            name = group or pod["metadata"]["uid"]
            if name not in self._workloads:
                size = int(annotations[GROUP_SIZE]) if group else 1
                priority = int(labels.get(PRIORITY) == HIGH)
                number = next(self._numbers)
                self._workloads[name] = Workload(name, number, size, bool(group), priority)
            self._workloads[name].pods.append(pod)
        self._workloads = {n: w for n, w in self._workloads.items() if w.pods}

    def _follow(self, workload: Workload) -> None:
        inactive = [pod for pod in workload.pods if not _is_active(pod)]
        if not any(_runs(pod) for pod in workload.pods):
            workload.stopping = False
        if self._is_finished(workload):
            workload.admitted = 0
            self._let_go(workload.pods)
            return
        if workload.is_group:
            self._delete_excess(workload)
            replaced = len(inactive) + len(workload.active) - workload.size
            self._let_go(inactive[: max(0, replaced)])
        if workload.admitted:
            for pod in workload.active:
                self._start(pod)

    def _is_finished(self, workload: Workload) -> bool:
        if not workload.is_group:
            return all(map(_is_over, workload.pods)) or not workload.active
        succeeded = sum(pod["status"].get("phase") == "Succeeded" for pod in workload.pods)
        last = any(_texts(pod, "annotations").get(RETRIABLE) == "false" for pod in workload.pods)
        ended = all(_is_over(pod) or not _is_active(pod) for pod in workload.pods)
        return succeeded == workload.size or (last and ended)

    def _delete_excess(self, workload: Workload) -> None:
        """Deletes the active pods that were created last."""
        waiting_last = sorted(workload.active, key=lambda p: not p["spec"].get("nodeName"))
        for pod in waiting_last[workload.size :]:
            self.excess.append(pod["metadata"]["name"])
            self._let_go([pod])
            self._delete(pod)

    def _is_waiting(self, workload: Workload) -> bool:
        is_ready = len(workload.active) == workload.size
        has_left = not (workload.admitted or workload.stopping)
        return is_ready and has_left and not self._is_finished(workload)

    def _admit(self, workload: Workload, waits_for: int) -> bool:
        """Admits a workload, or makes room for it; returns whether it is admitted.

        Args:
          waits_for: the room that workloads before it wait for.
        """
        free = self._quota - sum(w.holds for w in self._workloads.values()) - waits_for
        if free >= workload.size:
            workload.admitted = next(self._admissions)
            for pod in workload.active:
                self._start(pod)
            return True
        free += sum(w.holds for w in self._workloads.values() if w.stopping)
        for victim in self._victims(workload):
            if free >= workload.size:
                break
            free += victim.holds
            self._evict(victim, workload)
        return False

    def _victims(self, workload: Workload) -> Iterator[Workload]:
        admitted = [w for w in self._workloads.values() if w.admitted and not w.stopping]
        lower = [w for w in admitted if w.priority < workload.priority]
        yield from sorted(lower, key=lambda w: -w.admitted)

    def _evict(self, victim: Workload, by: Workload) -> None:
        victim.admitted, victim.stopping = 0, True
        self.evicted += 1
        condition = {
            "type": "TerminationTarget",
            "status": "True",
            "reason": "WorkloadEvicted",
            "message": PREEMPTED.format(by.name),
            "lastTransitionTime": now(),
        }
        for pod in victim.pods:
            if not _is_deleted(pod):
                self._change(pod, {}, {"conditions": [condition]})
                self._delete(pod)

    # --- requests ------------------------------------------------------------------------

    def _start(self, pod: Json) -> None:
        """Gives a pod to a node, where Kueue removes its gate."""
        if pod["spec"].get("nodeName") or _is_deleted(pod):
            return
        name = pod["metadata"]["name"]
        target = {"apiVersion": "v1", "kind": "Node", "name": next(self._nodes)}
        body = {"kind": "Binding", "metadata": {"name": name}, "target": target}
        with contextlib.suppress(ApiError):  # it was deleted meanwhile
            self._api.request("POST", path_of("Pod", NAMESPACE, name, "binding"), body)
            pod["spec"]["nodeName"] = target["name"]

    def _let_go(self, pods: list[Json]) -> None:
        """Removes the finalizer, without which a deleted pod goes away."""
        for pod in pods:
            if MANAGED in pod["metadata"].get("finalizers", []):
                self._change(pod, {"$deleteFromPrimitiveList/finalizers": [MANAGED]})

    def _change(self, pod: Json, metadata: Json, status: Json | None = None) -> None:
        body = {"status": status} if status else {"metadata": metadata}
        name, part = pod["metadata"]["name"], "status" if status else ""
        with contextlib.suppress(ApiError):  # it was deleted meanwhile
            self._api.patch("Pod", NAMESPACE, name, body, part, how=STRATEGIC)

    def _delete(self, pod: Json) -> None:
        with contextlib.suppress(ApiError):
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            self._api.delete("Pod", NAMESPACE, name, uid=uid)


def important_pod(name: str) -> Json:
    """Returns the manifest of a pod of another job, of higher priority."""
    container = {"name": "main", "image": "any", "command": ["sleep", "infinity"]}
    labels = {QUEUE_LABEL: QUEUE, PRIORITY: HIGH}
    spec = {
        "schedulerName": SCHEDULER,
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
    }
    return {"kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def _texts(pod: Json, kind: str) -> dict[str, str]:
    found: dict[str, str] = pod["metadata"].get(kind) or {}
    return found


def _is_deleted(pod: Json) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _is_over(pod: Json) -> bool:
    return pod["status"].get("phase") in ("Failed", "Succeeded")


def _runs(pod: Json) -> bool:
    return bool(pod["spec"].get("nodeName")) and not _is_over(pod)


def _is_active(pod: Json) -> bool:
    never_ran = _is_deleted(pod) and not pod["spec"].get("nodeName")
    return not never_ran and pod["status"].get("phase") != "Failed"
