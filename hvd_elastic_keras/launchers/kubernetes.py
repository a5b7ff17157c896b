"""Workers as plain pods, one pod each, so that a queue or the scheduler may take single ones.

In a pod, a joiner (`run --join`) looks after the worker and tells the master of its end. Where the
joiner cannot do so, the status of the pod tells how the worker ended. The launcher compares the
wanted pods with the list of the API server. While the server does not answer, training goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path

import tenacity

from hvd_elastic_keras.common import control
from hvd_elastic_keras.launchers.base import LaunchedWorker, WorkerExit
from hvd_elastic_keras.launchers.kubernetes_api import ApiError, Cluster, Json
from hvd_elastic_keras.launchers.kubernetes_pod import (
    GROUP_IS_OVER,
    GROUP_LABEL,
    WORKER_LABEL,
    PodSettings,
    label,
    manifest,
)
from hvd_elastic_keras.launchers.kubernetes_reasons import (
    Ending,
    ending,
    lost_with_node,
    pending_reason,
    why_leaving,
)
from hvd_elastic_keras.launchers.kubernetes_requests import Answers, Pod, PodRequests, PodWatch

KUBERNETES = "kubernetes"
"""Name of the host that stands for all pods of a job. It has many slots."""
PID_UNKNOWN = 0
"""Process id of a worker that has not reported its own yet."""
KILL_GRACE_S = 1
"""Shortest grace time of a pod (seconds). With 0, nobody waits for its process to end."""
LOST_AFTER_S = 30.0
"""Seconds after its grace time at which a pod counts as lost if no node confirms its end."""
CLOSE_WITHIN_S = 20.0
HARMLESS_CODES = (control.ENDED_WELL, control.LEFT)


@dataclasses.dataclass(frozen=True)
class Told:
    """Callbacks of the launcher, called in the event loop.

    Attributes:
      pending: gets a worker id, and why the worker does not run yet; see
        `machine.actions.Pending`.
      failed: gets a worker id, and why its pod cannot be made.
      leaving: gets a worker id, and why somebody deletes its pod. The worker has time to finish its
        step.
      people: gets a line for the console.
    """

    pending: Callable[[str, str | None], None]
    failed: Callable[[str, str], None]
    leaving: Callable[[str, str], None]
    people: Callable[[str], None]


@dataclasses.dataclass
class _Kept:
    """The data about a worker that has not ended."""

    on_exit: Callable[[WorkerExit], None]
    created_at: float | None
    """Time since when its pod certainly exists; None if it may not exist yet."""
    pod: Pod | None = None
    unwanted: bool = False
    pending: str | None = ""
    limit: asyncio.TimerHandle | None = None
    """Timer after which a pod that should be gone counts as lost."""


class KubernetesLauncher:
    """Creates, follows and deletes the pods of a job.

    Args:
      arguments: returns the arguments of `hvd_elastic_keras.run` in the pod of a worker.
      owner: reference to the owner of all pods; they are deleted together with it.
      log_dir: directory that gets a file for each worker, so that no later launcher reuses its id.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: PodSettings,
        *,
        arguments: Callable[[str], list[str]],
        owner: Json,
        log_dir: Path,
        told: Told,
    ) -> None:
        self._cluster, self._settings = cluster, settings
        self._log_dir, self._told = log_dir, told
        self._loop = asyncio.get_running_loop()
        self._workers: dict[str, _Kept] = {}
        self._ended: set[str] = set()
        self._trouble = ""
        self._group = settings.group(owner)
        self._requests = PodRequests(
            cluster,
            settings,
            lambda worker_id, group: manifest(
                settings, worker_id, arguments(worker_id), owner, group
            ),
            self._is_wanted,
            Answers(
                created=lambda worker_id, at: self._call(self._created, worker_id, at),
                refused=lambda worker_id, why: self._call(self._not_created, worker_id, why),
                delayed=lambda worker_id, why: self._call(self._tell, worker_id, why),
            ),
            group=self._group,
        )
        self._watch = PodWatch(
            cluster,
            settings.selector,
            on_list=lambda pods, asked_at: self._call(self._compare, pods, asked_at),
            on_pod=lambda pod, gone: self._call(self._see, pod, gone),
            on_trouble=lambda text: self._call(self._note_trouble, text),
        )

    def launch(
        self, worker_id: str, host: str, on_exit: Callable[[WorkerExit], None]
    ) -> LaunchedWorker:
        """Asks for a pod. See `Launcher.launch`."""
        self._log_dir.mkdir(parents=True, exist_ok=True)
        (self._log_dir / f"{worker_id}.log").touch()
        self._keep(worker_id, _Kept(on_exit, created_at=None))
        self._requests.create(worker_id)
        return LaunchedWorker(host, PID_UNKNOWN)

    def adopt(self, worker_id: str, on_exit: Callable[[WorkerExit], None]) -> LaunchedWorker | None:
        """Looks after a pod of an earlier launcher. If it is missing, the next list shows that."""
        self._keep(worker_id, _Kept(on_exit, created_at=0.0))
        return LaunchedWorker(KUBERNETES, PID_UNKNOWN)

    def kill(self, worker_id: str) -> None:
        """Deletes a pod at once."""
        kept = self._workers.get(worker_id)
        if kept and not kept.unwanted:
            kept.unwanted = True
            if kept.created_at is not None:
                self._delete(worker_id, kept)

    def running(self) -> list[str]:
        """Returns the ids of the workers whose pods have not ended."""
        return list(self._workers)

    def start(self) -> None:
        """Begins to follow the pods. Callbacks run when the event loop goes on."""
        self._watch.start()

    def abandon(self) -> None:
        """Stops following the pods, and leaves them to the next launcher."""
        self._watch.close()
        self._requests.close()

    def close(self) -> None:
        """Removes everything of the job from the cluster, because the job is over."""
        self.abandon()
        asking = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(ApiError),
            wait=tenacity.wait_random_exponential(multiplier=0.2, max=2.0),
            stop=tenacity.stop_after_delay(CLOSE_WITHIN_S),
            reraise=True,
        )
        try:
            asking(self._clear_away)
        except ApiError as error:
            self._told.people(
                f"warning: pods and the Secret of {self._settings.job} may be left in the "
                f"namespace {self._settings.namespace}: {error}. Delete the Secret, and they go "
                "with it"
            )

    def _clear_away(self) -> None:
        pods, _ = self._cluster.pods(self._settings.selector)
        self._dissolve_group(pods)
        for pod in pods:
            over = pod["status"].get("phase") in ("Failed", "Succeeded")
            self._cluster.delete("pods", pod["metadata"]["name"], 0 if over else KILL_GRACE_S)
        self._cluster.delete("secrets", self._settings.job)

    def _dissolve_group(self, pods: list[Pod]) -> None:
        """Tells Kueue to wait for no further pods of the group.

        It would keep pods that have ended until others take their places.
        """
        group = self._group
        member = next((p for p in pods if group and label(p, GROUP_LABEL) == group.name), None)
        if member:
            name = member["metadata"]["name"]
            self._cluster.change("pods", name, {"metadata": {"annotations": GROUP_IS_OVER}})

    def _is_wanted(self, worker_id: str) -> bool:
        kept = self._workers.get(worker_id)
        return kept is not None and not kept.unwanted

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the job is over
            self._loop.call_soon_threadsafe(function, *arguments)

    # --- handling of changes, called in the event loop ------------------------------------

    def _keep(self, worker_id: str, kept: _Kept) -> None:
        self._workers[worker_id] = kept
        self._loop.call_soon(self._told.pending, worker_id, kept.pending)

    def _created(self, worker_id: str, at: float) -> None:
        kept = self._workers.get(worker_id)
        if kept:
            kept.created_at = at
            if kept.unwanted:
                self._delete(worker_id, kept)

    def _delete(self, worker_id: str, kept: _Kept) -> None:
        self._requests.delete(worker_id, KILL_GRACE_S)
        self._limit(worker_id, kept, KILL_GRACE_S)

    def _not_created(self, worker_id: str, error: str) -> None:
        kept = self._workers.pop(worker_id, None)
        if kept and kept.unwanted:
            kept.on_exit(WorkerExit(worker_id, None))
        elif kept:
            self._told.failed(worker_id, error)

    def _compare(self, pods: list[Pod], asked_at: float) -> None:
        """Takes a list of all pods. A pod that is missing in it is gone."""
        for pod in pods:
            self._see(pod, gone=False)
        there = {_worker_of(pod) for pod in pods}
        for worker_id, kept in list(self._workers.items()):
            was_there = kept.created_at is not None and kept.created_at < asked_at
            if was_there and worker_id not in there:
                self._see(kept.pod or _never_seen(worker_id), gone=True)

    def _see(self, pod: Pod, gone: bool) -> None:
        worker_id = _worker_of(pod)
        kept = self._workers.get(worker_id)
        is_leaving = bool(pod["metadata"].get("deletionTimestamp"))
        if kept is None:
            if not (gone or is_leaving or worker_id in self._ended):
                self._requests.delete(worker_id, KILL_GRACE_S)  # left by an earlier launcher
            return
        kept.pod = pod
        end = ending(pod, deleted_by_us=kept.unwanted, gone=gone)
        if end:
            self._finish(worker_id, end, gone=gone)
            return
        self._tell(worker_id, pending_reason(pod))
        if is_leaving and kept.limit is None:
            self._limit(worker_id, kept, pod["metadata"].get("deletionGracePeriodSeconds") or 0)
            if not kept.unwanted:
                self._told.leaving(worker_id, why_leaving(pod))

    def _tell(self, worker_id: str, pending: str | None) -> None:
        kept = self._workers.get(worker_id)
        if kept and kept.pending != pending:
            kept.pending = pending
            self._told.pending(worker_id, pending)

    def _finish(self, worker_id: str, end: Ending, *, gone: bool = False) -> None:
        kept = self._workers.pop(worker_id)
        self._ended.add(worker_id)
        if kept.limit:
            kept.limit.cancel()
        # Failed pods stay, because people want to see their logs.
        if not gone and (end.taken or end.return_code in HARMLESS_CODES):
            self._requests.delete(worker_id, 0)
        kept.on_exit(WorkerExit(worker_id, end.return_code, end.reason, end.taken))

    def _limit(self, worker_id: str, kept: _Kept, grace_s: float) -> None:
        if kept.limit is None:
            wait_s = grace_s + LOST_AFTER_S
            kept.limit = self._loop.call_later(wait_s, self._lose, worker_id, kept)

    def _lose(self, worker_id: str, kept: _Kept) -> None:
        """Handles a pod whose end no node has confirmed in time."""
        kept.limit = None
        if self._workers.get(worker_id) is not kept:
            return
        if self._trouble:  # nothing is known of any pod
            self._limit(worker_id, kept, 0.0)
        else:
            self._finish(worker_id, lost_with_node(kept.pod or _never_seen(worker_id)))

    def _note_trouble(self, text: str) -> None:
        if text and not self._trouble:
            self._told.people(f"warning: {text}; training goes on")
        elif self._trouble and not text:
            self._told.people("the API server answers again")
        self._trouble = text


def _worker_of(pod: Pod) -> str:
    return label(pod, WORKER_LABEL)


def _never_seen(worker_id: str) -> Pod:
    return {"metadata": {"labels": {WORKER_LABEL: worker_id}}}
