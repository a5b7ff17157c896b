"""A launcher that starts nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hvd_elastic_keras.launchers.base import LaunchedWorker, WorkerExit

OnExit = Callable[[WorkerExit], None]


class IdleLauncher:
    """Notes its calls; workers end when the test says so."""

    def __init__(self) -> None:
        self.on_exit: dict[str, OnExit] = {}
        self.launched: list[str] = []
        self.killed: list[str] = []
        self.failures_to_come = 0
        self.failure: Exception = OSError("no such host")

    def launch(self, worker_id: str, host: str, on_exit: OnExit) -> LaunchedWorker:
        self.launched.append(worker_id)
        if self.failures_to_come:
            self.failures_to_come -= 1
            raise self.failure
        self.on_exit[worker_id] = on_exit
        return LaunchedWorker("localhost", 4000 + len(self.launched))

    def kill(self, worker_id: str) -> None:
        self.killed.append(worker_id)
        self.end(worker_id, -9)

    def adopt(self, worker_id: str, on_exit: OnExit) -> LaunchedWorker | None:
        raise AssertionError("nobody was left by another launcher")

    def running(self) -> list[str]:
        return list(self.on_exit)

    def close(self) -> None:
        """Does nothing: there is nothing to remove."""

    def end(self, worker_id: str, return_code: int) -> None:
        on_exit = self.on_exit.pop(worker_id, None)
        if on_exit:
            loop = asyncio.get_running_loop()
            loop.call_soon(on_exit, WorkerExit(worker_id, return_code))
