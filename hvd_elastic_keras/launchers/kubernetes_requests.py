"""Creates, deletes and follows the pods of a job.

`PodRequests`: each request has its own thread and is repeated until it succeeds. Where pods form a
group, one is created at a time: the list of the API server tells whether it belongs to the group.

`PodWatch` lists the pods, watches for a limited time, and lists them again. Nothing depends on a
single event: a missed change is in the next list. A version that is too old (410) and a broken
connection are normal, and lead to the next list.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any

import tenacity

from hvd_elastic_keras.launchers.kubernetes_api import ALREADY_EXISTS, ApiError, Cluster, Json
from hvd_elastic_keras.launchers.kubernetes_pod import (
    GROUP_LABEL,
    PodGroup,
    PodSettings,
    belongs_to,
)

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 15.0
AT_A_TIME = 8
"""Most requests at the same time."""

Pod = dict[str, Any]
WATCH_S = 30
"""Seconds until the next list, which brings missed changes."""
PAUSE_S = 0.2
LONGEST_WATCH_PAUSE_S = 10.0
DELETED = "DELETED"


@dataclasses.dataclass(frozen=True)
class Answers:
    """Callbacks for the result of a request for a pod, called in the thread of the request.

    Attributes:
      created: gets a worker id, and since when its pod certainly exists (`time.monotonic`).
      refused: gets a worker id, and why its pod cannot be made or is not wanted any more.
      delayed: gets a worker id, and why its pod cannot be made yet.
    """

    created: Callable[[str, float], None]
    refused: Callable[[str, str], None]
    delayed: Callable[[str, str], None]


class PodRequests:
    """Creates and deletes the pods of workers.

    Args:
      manifest: returns the manifest of the pod of a worker, in a group or in none.
      is_wanted: returns whether a worker that has no pod yet is to get one.
      group: the group of the first pods, if any.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: PodSettings,
        manifest: Callable[[str, PodGroup | None], Json],
        is_wanted: Callable[[str], bool],
        answers: Answers,
        *,
        group: PodGroup | None = None,
    ) -> None:
        self._cluster, self._settings = cluster, settings
        self._manifest, self._is_wanted, self._answers = manifest, is_wanted, answers
        self._closed = threading.Event()
        self._few = threading.Semaphore(AT_A_TIME)
        self._group = group
        self._next = threading.Lock() if group else contextlib.nullcontext()

    def create(self, worker_id: str) -> None:
        """Asks for the pod of a worker. A pod of this worker that exists already is used."""
        threading.Thread(target=self._create, args=(worker_id,), daemon=True).start()

    def delete(self, worker_id: str, grace_s: int) -> None:
        """Deletes the pod of a worker, if it is there."""
        threading.Thread(target=self._delete, args=(worker_id, grace_s), daemon=True).start()

    def close(self) -> None:
        """Stops all requests."""
        self._closed.set()

    def _create(self, worker_id: str) -> None:
        answers = self._answers
        try:
            self._until(
                lambda: self._closed.is_set() or not self._is_wanted(worker_id),
                lambda error: answers.delayed(worker_id, _why_not_yet(error)),
            )(self._ask_for, worker_id)
        except ApiError as error:
            answers.refused(worker_id, str(error))
        else:
            answers.created(worker_id, time.monotonic())

    def _ask_for(self, worker_id: str) -> None:
        with self._next, self._few:
            try:
                group = self._group_with_room()
                self._cluster.create("pods", self._manifest(worker_id, group))
            except ApiError as error:
                if error.status != ALREADY_EXISTS:
                    raise
                self._check_ours(worker_id)

    def _group_with_room(self) -> PodGroup | None:
        """Returns the group if the next pod belongs to it.

        Raises:
          PlaceTakenError: a pod of the group is about to end, and its place is not free yet.
        """
        if self._group is None:
            return None
        pods, _ = self._cluster.pods(f"{GROUP_LABEL}={self._group.name}")
        there = [pod for pod in pods if _has_a_place(pod)]
        if len(there) < self._group.size:
            return self._group
        leaving = [pod["metadata"]["name"] for pod in there if _is_leaving(pod)]
        if leaving:
            raise PlaceTakenError(leaving)
        return None

    def _check_ours(self, worker_id: str) -> None:
        settings = self._settings
        name = settings.pod_name(worker_id)
        if not belongs_to(settings, worker_id, self._cluster.read("pods", name)):
            raise ForeignPodError(name, settings.namespace)

    def _delete(self, worker_id: str, grace_s: int) -> None:
        name = self._settings.pod_name(worker_id)
        with contextlib.suppress(ApiError), self._few:
            self._until(self._closed.is_set)(self._cluster.delete, "pods", name, grace_s)

    def _until(
        self, is_over: Callable[[], bool], told: Callable[[BaseException], None] | None = None
    ) -> tenacity.Retrying:
        """Repeats a request that may be granted later, and reports why it was not granted yet."""

        def tell(state: tenacity.RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            if told and error:
                told(error)

        return tenacity.Retrying(
            retry=tenacity.retry_if_exception(_may_get_better),
            wait=tenacity.wait_random_exponential(multiplier=FIRST_PAUSE_S, max=LONGEST_PAUSE_S),
            stop=lambda _: is_over(),
            sleep=self._pause,
            before_sleep=tell,
            reraise=True,
        )

    def _pause(self, seconds: float) -> None:
        self._closed.wait(seconds)


class ForeignPodError(ApiError):
    """A pod of this name exists, but does not belong to this job."""

    def __init__(self, name: str, namespace: str) -> None:
        super().__init__(
            ALREADY_EXISTS,
            f"there is a pod {name} in the namespace {namespace} that is not of this job; delete "
            "it, or start the job with another --job_name",
        )

    @property
    def is_hopeless(self) -> bool:
        """True, because others decide about that pod."""
        return True


class PlaceTakenError(ApiError):
    """A pod cannot join its group yet."""

    def __init__(self, leaving: list[str]) -> None:
        names = ", ".join(leaving)
        super().__init__(0, f"it takes the place of a pod that has not ended yet ({names})")


def _has_a_place(pod: Pod) -> bool:
    """Whether Kueue counts a pod among those of its group. It counts one that has succeeded."""
    never_ran = _is_leaving(pod) and not pod["spec"].get("nodeName")
    return not never_ran and pod["status"].get("phase") != "Failed"


def _is_leaving(pod: Pod) -> bool:
    is_over = pod["status"].get("phase") == "Succeeded"
    return bool(pod["metadata"].get("deletionTimestamp")) and not is_over


def _may_get_better(error: BaseException) -> bool:
    return isinstance(error, ApiError) and not error.is_hopeless


def _why_not_yet(error: BaseException) -> str:
    if isinstance(error, PlaceTakenError):
        return str(error)
    if "exceeded quota" in str(error):
        return f"the quota of the namespace has no room for it: {error}"
    return f"its pod could not be created: {error}"


class PodWatch:
    """A thread that reports the pods of a job.

    Args:
      on_list: gets all pods, and the time when they were asked for (`time.monotonic`).
      on_pod: gets one pod, and whether it is gone.
      on_trouble: gets the reason why the API server does not answer, and "" when it answers again.
    """

    def __init__(
        self,
        cluster: Cluster,
        selector: str,
        *,
        on_list: Callable[[list[Pod], float], None],
        on_pod: Callable[[Pod, bool], None],
        on_trouble: Callable[[str], None],
    ) -> None:
        self._cluster, self._selector = cluster, selector
        self._on_list, self._on_pod, self._on_trouble = on_list, on_pod, on_trouble
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pods", daemon=True)

    def start(self) -> None:
        """Begins to report pods."""
        self._thread.start()

    def close(self) -> None:
        """Stops all reports."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(PAUSE_S):
            with contextlib.suppress(ApiError):
                self._watch(self._list())

    def _list(self) -> str:
        """Reports all pods; returns the version of the list."""
        asking = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(ApiError),
            wait=tenacity.wait_random_exponential(multiplier=PAUSE_S, max=LONGEST_WATCH_PAUSE_S),
            stop=lambda _: self._closed.is_set(),
            sleep=self._pause,
            before_sleep=lambda state: self._on_trouble(_said(state)),
            reraise=True,
        )
        asked_at, (pods, version) = asking(self._ask)
        self._on_trouble("")
        self._on_list(pods, asked_at)
        return version

    def _pause(self, seconds: float) -> None:
        self._closed.wait(seconds)

    def _ask(self) -> tuple[float, tuple[list[Pod], str]]:
        return time.monotonic(), self._cluster.pods(self._selector)

    def _watch(self, version: str) -> None:
        for kind, pod in self._cluster.watch_pods(self._selector, version, WATCH_S):
            if self._closed.is_set():
                return
            self._on_pod(pod, kind == DELETED)


def _said(state: tenacity.RetryCallState) -> str:
    return str(state.outcome.exception()) if state.outcome else ""
