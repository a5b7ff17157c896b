"""Answers people's browsers and Prometheus: metrics, the dashboard and its stream.

The files of the dashboard are the same for every job, and need no token: a browser has none when it
opens an address. The page asks for the token, or finds it behind the `#` of its address, which is
never sent. All that the page shows and does needs the token in a header, which no other page can
send.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from hvd_elastic_keras.common import control
from hvd_elastic_keras.observe import web_files
from hvd_elastic_keras.observe.job_course import JobCourse

INTERVAL_S = 1.0
"""Seconds between two messages with the status. Events are sent at once."""
LEAST_GAP_S = 0.1
"""Events that follow each other within this many seconds are sent together."""
MOST_STREAMS = 32
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Pages:
    """An extension of the master's endpoint that answers people; see `master/http/core.py`.

    Args:
      course: the course of the job so far.
      status: returns the present state of the job.
    """

    def __init__(self, course: JobCourse, status: Callable[[], control.JobStatus]) -> None:
        self._course = course
        self._status = status
        self._streams: set[asyncio.Event] = set()
        """One for each stream, set when there is news to send."""
        self._over = False

    def routes(self) -> list[web.RouteDef]:
        """The requests that need the token."""
        return [web.get("/metrics", self._metrics), web.get("/v1/stream", self._stream)]

    def open_routes(self) -> list[web.RouteDef]:
        """The requests for the page, which need no token."""
        routes = [web.get("/dashboard", _file("dashboard.html"))]
        names = web_files.OF_DASHBOARD
        return routes + [web.get(f"/dashboard/{name}", _file(name)) for name in names]

    async def end(self, _: web.Application) -> None:
        """Ends all streams, after they have sent the last news."""
        self._over = True
        self._tell_all()

    def _tell_all(self) -> None:
        for news in self._streams:
            news.set()

    async def _metrics(self, _: web.Request) -> web.Response:
        from hvd_elastic_keras.observe import prometheus

        body = prometheus.exposition(self._status(), self._course)
        return web.Response(body=body, headers={"Content-Type": prometheus.CONTENT_TYPE})

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
        headers = {**HEADERS, "Content-Type": web_files.type_of(name)}
        return web.Response(body=web_files.read(name), headers=headers)

    return answer
