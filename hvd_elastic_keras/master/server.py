"""The master's HTTP endpoint (aiohttp). Every request needs the job's token.

| request                                | purpose                                             |
|----------------------------------------|-----------------------------------------------------|
| POST /v1/events                        | a worker tells what happened (`WorkerEvent`)        |
| POST /v1/enter                         | a worker wants into the next round; held            |
| GET  /v1/updates?worker_id=…&version=… | what changed for a worker; held                     |
| GET  /v1/input                         | where the input is read (`InputReply`)              |
| GET  /v1/status                        | phase, round and workers                            |
| POST /v1/workers                       | more or fewer workers (`ChangeRequest`)             |
| POST /v1/slots                         | slots granted or revoked (`SlotsRequest`)           |
| *    /<secret>/round<N>:<port>/…       | Horovod's rendezvous store; the path is the secret  |
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Protocol

from aiohttp import web

from hvd_elastic_keras import protocol
from hvd_elastic_keras.master.rendezvous import RendezvousStore

MAX_MESSAGE_BYTES = 4 * 2**20

log = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Core(Protocol):
    """What the server needs of the controller."""

    def on_worker_event(self, event: protocol.WorkerEvent) -> None:
        """A worker tells what happened."""

    async def enter(self, request: protocol.EnterRequest) -> protocol.EnterReply:
        """Waits for a place in the next round."""

    async def update_after(self, worker_id: str, version: int) -> protocol.WorkerUpdate:
        """Waits until there is something newer than `version`."""

    def input_position(self) -> protocol.InputReply:
        """Where those read who hold a state."""

    def status(self) -> protocol.JobStatus:
        """The present state, for people."""

    def change_workers(self, request: protocol.ChangeRequest) -> protocol.ChangeReply:
        """Adds or removes workers."""

    def change_slots(self, request: protocol.SlotsRequest) -> protocol.SlotsReply:
        """Grants or revokes slots."""


class MasterServer:
    """Serves one job on one address."""

    def __init__(self, core: Core, token: str) -> None:
        self._core = core
        self._token = token
        self._secret = secrets.token_hex(16)
        self._runner: web.AppRunner | None = None
        self.rendezvous = RendezvousStore()
        self.address = ""

    async def start(self, host: str) -> None:
        """Binds to a free port of `host`; `address` is set afterwards."""
        app = web.Application(
            middlewares=[self._authenticate, _report_errors],
            client_max_size=MAX_MESSAGE_BYTES,
        )
        app.add_routes(
            [
                web.post("/v1/events", self._events),
                web.post("/v1/enter", self._enter),
                web.get("/v1/updates", self._updates),
                web.get("/v1/input", self._input),
                web.get("/v1/status", self._status),
                web.post("/v1/workers", self._workers),
                web.post("/v1/slots", self._slots),
                web.route("*", f"/{self._secret}/{{scope:round\\d+:\\d+}}/{{key:.+}}", self._store),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, 0)
        await site.start()
        port = self._runner.addresses[0][1]
        self.address = f"{host}:{port}"

    async def stop(self) -> None:
        """Closes all connections and the port."""
        if self._runner:
            await self._runner.cleanup()

    def rendezvous_of(self, round_number: int) -> str:
        """Value of HOROVOD_GLOO_RENDEZVOUS_ADDR for a round."""
        return f"{self.address}/{self._secret}/round{round_number}"

    @web.middleware
    async def _authenticate(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not request.path.startswith(f"/{self._secret}/"):
            given = request.headers.get("Authorization", "")
            if not hmac.compare_digest(
                given.encode("utf-8", "surrogateescape"), f"Bearer {self._token}".encode()
            ):
                return _error(401, "The token is missing or wrong. Use that of this job.")
        return await handler(request)

    async def _events(self, request: web.Request) -> web.Response:
        for_decoding: type = protocol.WorkerEvent  # type: ignore[assignment]
        self._core.on_worker_event(protocol.decode(await request.read(), for_decoding))
        return _message(protocol.ChangeReply(accepted=True, text=""))

    async def _enter(self, request: web.Request) -> web.Response:
        entry = protocol.decode(await request.read(), protocol.EnterRequest)
        return _message(await self._core.enter(entry))

    async def _updates(self, request: web.Request) -> web.Response:
        worker_id, version = request.query.get("worker_id", ""), request.query.get("version", "")
        if not worker_id or not version.isdecimal():
            raise protocol.ProtocolError(
                f"worker_id={worker_id!r} and version={version!r} were given, "
                "expected a worker id and a whole number."
            )
        return _message(await self._core.update_after(worker_id, int(version)))

    async def _input(self, request: web.Request) -> web.Response:
        return _message(self._core.input_position())

    async def _status(self, request: web.Request) -> web.Response:
        return _message(self._core.status())

    async def _workers(self, request: web.Request) -> web.Response:
        change = protocol.decode(await request.read(), protocol.ChangeRequest)
        return _message(self._core.change_workers(change))

    async def _slots(self, request: web.Request) -> web.Response:
        change = protocol.decode(await request.read(), protocol.SlotsRequest)
        if change.mistake:
            raise protocol.ProtocolError(change.mistake)
        reply = self._core.change_slots(change)
        return _message(reply, 200 if reply.accepted else protocol.CONFLICT)

    async def _store(self, request: web.Request) -> web.Response:
        scope = request.match_info["scope"]
        round_number = int(scope.removeprefix("round").partition(":")[0])
        key = request.match_info["key"]
        if request.method == "PUT":
            self.rendezvous.put(round_number, key, await request.read())
        elif request.method == "GET":
            value = await self.rendezvous.get(round_number, key)
            return web.Response(status=404) if value is None else web.Response(body=value)
        return web.Response()


@web.middleware
async def _report_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answers all errors in the same form."""
    what = f"{request.method} {request.path}"
    try:
        return await handler(request)
    except protocol.ProtocolError as error:
        return _error(400, str(error))
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        return _error(error.status, f"{what} was requested, expected {allowed}.", error)
    except web.HTTPNotFound as error:
        return _error(error.status, f"{what} was requested, which is not part of this API.", error)
    except web.HTTPException as error:
        return _error(error.status, f"{what} is refused: {error.text}", error)
    except ConnectionResetError:
        # The worker has ended in the middle of its request: nobody reads this answer.
        return web.Response(status=400)
    except Exception:
        log.exception("%s failed", what)
        return _error(500, f"{what} failed by an error of the master; its console shows it.")


def _message(message: protocol.Message, status: int = 200) -> web.Response:
    body = protocol.encode(message)
    return web.Response(status=status, body=body, content_type="application/json")


def _error(status: int, text: str, cause: web.HTTPException | None = None) -> web.Response:
    response = _message(protocol.ChangeReply(accepted=False, text=text), status)
    if cause is not None and "Allow" in cause.headers:
        response.headers["Allow"] = cause.headers["Allow"]
    return response


async def wait_for_newer(
    condition: asyncio.Condition, version: Callable[[], int], known: int
) -> None:
    """Waits until `version()` exceeds `known`, at most `LONG_POLL_S` seconds."""
    async with condition:
        try:
            await asyncio.wait_for(
                condition.wait_for(lambda: version() > known), protocol.LONG_POLL_S
            )
        except asyncio.TimeoutError:
            return
