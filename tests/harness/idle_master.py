"""A controller with its real endpoint in a thread, and two workers that exist only as messages."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hvd_elastic_keras.common import control, files, messages, protocol
from hvd_elastic_keras.master.controller import Controller
from hvd_elastic_keras.master.journal import Term
from hvd_elastic_keras.master.shown_output import Audience
from hvd_elastic_keras.observe.console import Console
from hvd_elastic_keras.observe.job_course import JobCourse
from hvd_elastic_keras.observe.pages import Pages
from hvd_elastic_keras.settings.job_config import JobConfig
from tests.harness.idle_launcher import IdleLauncher

if TYPE_CHECKING:
    from typing_extensions import Self

LIMIT_S = 60.0
PATIENT = JobConfig(
    num_workers=2,
    heartbeat_timeout_s=1e6,
    enter_timeout_s=1e6,
    start_timeout_s=1e6,
    join_window_s=0.01,
    stop_grace_s=0.01,
)


class IdleMaster:
    """A job in its first round, running. Use it in a `with` block."""

    def __init__(self, job_dir: Path) -> None:
        self._job_dir = job_dir
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self.output = io.StringIO()

    def __enter__(self) -> Self:
        self._job_dir.mkdir(parents=True, exist_ok=True)
        self._thread.start()
        assert self._ready.wait(LIMIT_S)
        host, port = self.controller.address.split(":")
        self._connection = http.client.HTTPConnection(host, int(port), timeout=LIMIT_S)
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        with contextlib.suppress(RuntimeError):  # its job has ended by itself
            for _again in range(2):
                self._loop.call_soon_threadsafe(self.controller.stop, "end of the test")
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        console = Console(self.output)
        term = Term(self._job_dir, (), console)
        course = JobCourse.of(self._job_dir)
        self.controller = Controller(
            *(PATIENT, self._job_dir, console, term),
            audience=Audience(
                [course.hear],
                [lambda core: Pages(course, core.status, self._job_dir / files.LOGS)],
            ),
        )
        await self.controller.start("127.0.0.1")
        run = asyncio.ensure_future(self.controller.run(IdleLauncher()))
        self._ready.set()
        await run

    def call(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Sends a request; returns the status and the body of the answer."""
        token = {"Authorization": f"Bearer {self.controller.token}"}
        try:
            self._connection.request(
                method, path, body, headers=token if headers is None else headers
            )
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except (http.client.HTTPException, ConnectionError):
            self._connection.close()  # the next request opens another one
            return 0, b""

    def status(self) -> control.JobStatus | None:
        """Returns the job's state without values that change with time; None if it has ended."""
        status, body = self.call("GET", "/v1/status")
        if status != 200:
            return None
        found = messages.decode(body, control.JobStatus)
        workers = (msgspec.structs.replace(w, heartbeat_age_s=None) for w in found.workers)
        return msgspec.structs.replace(found, workers=tuple(workers), spent_s={})

    def _begin(self) -> None:
        for worker_id in ("w0", "w1"):
            self._tell(
                protocol.Joined(
                    worker_id=worker_id, training=1, pid=1, num_micro_batches=8, warm_up_s=0.0
                )
            )
        entered: set[str] = set()
        while len(entered) < 2:
            entered |= {w for w in ("w0", "w1") if self._enter(w)}
        for worker_id in ("w0", "w1"):
            self._tell(protocol.Running(worker_id=worker_id, round=1, step=0))
        status = self.status()
        assert status is not None
        assert status.phase == "running"

    def _enter(self, worker_id: str) -> Any:
        request = protocol.EnterRequest(
            worker_id=worker_id, training=1, from_round=0, has_state=False, progress=0, step=0
        )
        _, body = self.call("POST", "/v1/enter", messages.encode(request))
        return messages.decode(body, protocol.EnterReply).assignment

    def _tell(self, message: messages.Message) -> None:
        assert self.call("POST", "/v1/events", messages.encode(message))[0] == 200
