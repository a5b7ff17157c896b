"""Follows the pods of a job: lists them, watches for a limited time, and lists them again.

Nothing depends on a single event: a missed change is in the next list. A version that is too old
(410) and a broken connection are normal, and lead to the next list.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import tenacity

from hvd_elastic_keras.launchers.kubernetes_api import ApiError, Cluster

Pod = dict[str, Any]
WATCH_S = 30
"""Seconds until the next list, which brings missed changes."""
PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0
DELETED = "DELETED"


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
            wait=tenacity.wait_random_exponential(multiplier=PAUSE_S, max=LONGEST_PAUSE_S),
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
