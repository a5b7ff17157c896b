"""Answers people's browsers and Prometheus: metrics, the dashboard and its stream.

The files of the dashboard are the same for every job, and need no token: a browser has none when it
opens an address. The page asks for the token, or finds it behind the `#` of its address, which is
never sent. All that the page shows and does needs the token in a header, which no other page can
send.

Metrics are in the text format of Prometheus (https://prometheus.io/docs/instrumenting/).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hvd_elastic_keras.common import control, files, messages
from hvd_elastic_keras.common.control import JobStatus
from hvd_elastic_keras.observe import report_page
from hvd_elastic_keras.observe.job_course import JobCourse

INTERVAL_S = 1.0
"""Seconds between two messages with the status. Events are sent at once."""
LEAST_GAP_S = 0.1
"""Events that follow each other within this many seconds are sent together."""
MOST_STREAMS = 32
LOG_BYTES = 2**14
"""The length of the end of a log that a page shows, at most."""
_WORKER = re.compile(r"w[0-9]+")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

PREFIX = "hvd_elastic"
CONTENT_TYPE = CONTENT_TYPE_LATEST


class Pages:
    """An extension of the master's endpoint that answers people; see `master/http/core.py`.

    Args:
      course: the course of the job so far.
      status: returns the present state of the job.
      logs: the directory of the workers' logs.
    """

    def __init__(
        self, course: JobCourse, status: Callable[[], control.JobStatus], logs: Path
    ) -> None:
        self._course = course
        self._status = status
        self._logs = logs
        self._streams: set[asyncio.Event] = set()
        """One for each stream, set when there is news to send."""
        self._over = False

    def routes(self) -> list[web.RouteDef]:
        """The requests that need the token."""
        return [
            web.get("/metrics", self._metrics),
            web.get("/v1/stream", self._stream),
            web.get("/v1/log", self._log),
        ]

    def open_routes(self) -> list[web.RouteDef]:
        """The requests for the page, which need no token."""
        routes = [web.get("/dashboard", _file("dashboard.html"))]
        names = report_page.FILES_OF_DASHBOARD
        return routes + [web.get(f"/dashboard/{name}", _file(name)) for name in names]

    async def end(self, _: web.Application) -> None:
        """Ends all streams, after they have sent the last news."""
        self._over = True
        self._tell_all()

    def _tell_all(self) -> None:
        for news in self._streams:
            news.set()

    async def _metrics(self, _: web.Request) -> web.Response:

        body = exposition(self._status(), self._course)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def _log(self, request: web.Request) -> web.Response:
        """Answers with the end of a worker's log."""
        name = request.query.get("worker_id", "")
        path = self._logs / f"{name}.log"
        if not (_WORKER.fullmatch(name) and path.is_file()):
            raise messages.ProtocolError(
                f"The log of worker {name!r} was requested, which does not exist. Ask for a worker "
                "of GET /v1/status."
            )
        return web.Response(text=await asyncio.to_thread(_end_of, path))

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Answers with server-sent events: first all that has happened, then what happens."""
        if len(self._streams) >= MOST_STREAMS:
            raise web.HTTPServiceUnavailable(text=f"{MOST_STREAMS} dashboards are open already.")
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        await response.prepare(request)
        self._course.on_news = self._tell_all
        news = asyncio.Event()
        self._streams.add(news)
        try:
            await self._tell(response, news)
        finally:
            self._streams.discard(news)
        return response

    async def _tell(self, response: web.StreamResponse, news: asyncio.Event) -> None:
        known, over = 0, False
        while not over:
            over = self._over
            event, known = self._event(known), self._course.version
            news.clear()
            await response.write(event)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(news.wait(), 0.0 if over else INTERVAL_S)
            await asyncio.sleep(0.0 if self._over else LEAST_GAP_S)

    def _event(self, known: int) -> bytes:
        """Returns what has happened since version `known`."""
        course = self._course
        content = {
            "first": known == 0,
            "over": self._over,
            "status": self._status(),
            "newest": course.newest,
            "shares": course.shares,
            "totals": course.totals,
            "job": course.started,
            "finished": course.finished,
            **course.since(known),
        }
        return b"data: " + msgspec.json.encode(content) + b"\n\n"


def _file(name: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        headers = {**HEADERS, "Content-Type": report_page.type_of_web_file(name)}
        return web.Response(body=report_page.web_file(name), headers=headers)

    return answer


def _end_of(path: Path) -> str:
    """Returns the last lines of a log; a line that is drawn again and again (tqdm) as several."""
    is_long = path.stat().st_size > LOG_BYTES  # then the first line lacks its beginning
    text = files.end_of(path, LOG_BYTES).replace("\r", "\n")
    return text[text.find("\n") + 1 :] if is_long else text


def exposition(status: JobStatus, course: JobCourse) -> bytes:
    """Returns all metrics of a job at this moment."""
    return generate_latest(_Job(status, course))


@dataclasses.dataclass(frozen=True)
class _Job(Collector):
    status: JobStatus
    course: JobCourse

    def collect(self) -> Iterable[Metric]:
        yield from _membership(self.status)
        yield from _training(self.status, self.course)
        yield from _totals(self.course)
        # Gauges, not counters: a second that seemed to be training may turn out to be another part.
        text = "Seconds since the job began, by what they were spent on"
        yield _by("goodput_seconds", text, "part", self.status.spent_s)


def _membership(status: JobStatus) -> Iterable[Metric]:
    ranks = sum(worker.rank is not None for worker in status.workers)
    yield _gauge("world_size", "Workers that have a rank", ranks)
    yield _gauge("slots", "Workers that the job keeps up, on all hosts", status.target_workers)
    states = Counter(worker.phase for worker in status.workers)
    yield _by("workers", "Workers by what they do", "state", states)
    heard = [worker for worker in status.workers if worker.memory_bytes]
    text = "Processor time of a worker's process per second"
    yield _by("worker_cores", text, "worker", {w.worker_id: w.cores for w in heard})
    text = "Memory in use by a worker's process"
    memory = {w.worker_id: w.memory_bytes for w in heard}
    yield _by("worker_memory_bytes", text, "worker", memory)
    text = "Replacements for failed workers that count at present"
    yield _gauge("restarts", text, status.restarts_used)
    yield _gauge("restarts_limit", "Replacements that may count", status.max_restarts)


def _training(status: JobStatus, course: JobCourse) -> Iterable[Metric]:
    yield _gauge("training", "Number of the present training, from 1", status.training)
    yield _gauge("round", "Number of the newest round, from 1", status.round)
    yield _gauge("step", "Optimizer steps of the present training", status.step)
    newest = course.newest
    if newest is None:
        return
    if newest.epoch is not None:
        yield _gauge("epoch", "Number of the present epoch, from 1", newest.epoch + 1)
    if newest.examples_per_s is not None:
        yield _gauge("examples_per_second", "Examples per second", newest.examples_per_s)
    text = "Seconds per step, or per commit of a loop of one's own"
    yield _gauge("step_seconds", text, newest.step_s)
    if "loss" in newest.metrics:
        text = "Loss of the epoch, or the evaluation, so far"
        yield _gauge("loss", text, newest.metrics["loss"])
    metrics = {name: value for name, value in newest.metrics.items() if name != "loss"}
    yield _by("metric", "Metrics of the epoch, or the evaluation, so far", "name", metrics)


def _totals(course: JobCourse) -> Iterable[Metric]:
    totals = course.totals
    for name, text, value in (
        ("rounds", "Rounds that have run", totals.rounds),
        ("worker_failures", "Workers that have failed", totals.failures),
        ("evictions", "Workers that the job has given up", totals.evictions),
        ("steps_lost", "Steps that had to be taken again", totals.steps_lost),
        ("stall_seconds", "Seconds between the last step of a round and the next", totals.stall_s),
    ):
        yield CounterMetricFamily(f"{PREFIX}_{name}", text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, value=value)


def _by(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
