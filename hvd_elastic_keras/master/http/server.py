"""The master's HTTP endpoint (aiohttp). Every request but those for the page needs the job's token.

A token that only reads (`control.read_only_token`) is enough for the state of the job.

| request                                | purpose                                             |
|----------------------------------------|-----------------------------------------------------|
| POST /v1/events?number=…               | a worker tells what happened (`WorkerEvent`), once  |
| POST /v1/enter                         | a worker wants into the next round; held            |
| GET  /v1/updates?worker_id=…&version=… | what changed for a worker; held                     |
| GET  /v1/input                         | what newcomers ask before they join (`InputReply`)  |
| POST /v1/claim, /v1/release            | a worker wants to do what only one is to do; held   |
| GET  /v1/root                          | who stands for all workers (`RootReply`)            |
| GET  /v1/status                        | phase, round and workers                            |
| POST /v1/workers                       | more or fewer workers (`ChangeRequest`)             |
| POST /v1/slots                         | slots granted or revoked (`SlotsRequest`)           |
| POST /v1/stop                          | the job stops after the current step (`StopRequest`)|
| GET  /v1/job                           | what a joiner has to know (`JobDescription`)        |
| POST /v1/join, /v1/exit                | a worker comes by itself; its process is gone       |
| GET  /v1/stream                        | the course of the job, as server-sent events        |
| GET  /v1/log?worker_id=…               | the end of a worker's log                           |
| GET  /metrics                          | the same in numbers, for Prometheus                 |
| GET  /v1/openapi.json                  | all of these, described                             |
| *    /<secret>/round<N>:<port>/…       | Horovod's rendezvous store; each round has a secret |

The requests for the stream, logs, /metrics and the page are those of `observe/pages.py`, an
`Extension`. `HEALTH` tells anybody that the master answers, for the probes of Kubernetes.
"""

from __future__ import annotations

import collections
import hmac
import secrets
import ssl
from collections.abc import Iterable
from typing import TypeVar

from aiohttp import web

from hvd_elastic_keras.common import control, host_port, messages, protocol
from hvd_elastic_keras.master.http import openapi
from hvd_elastic_keras.master.http.answers import (
    Handler,
    answer,
    number_in,
    refusal,
    report_errors,
)
from hvd_elastic_keras.master.http.core import Core, Extension
from hvd_elastic_keras.master.http.listening_port import ListeningPort
from hvd_elastic_keras.master.http.rendezvous import RendezvousStore

MAX_MESSAGE_BYTES = 4 * 2**20

_STORE = "/{secret:[0-9a-f]{64}}/round{round:[0-9]{1,18}}:{port:[0-9]+}/{key:.+}"
MAY_ONLY_READ = (
    "This token may only ask for the state of the job. To change the job, use `token` in "
    "master.json of the job's directory."
)
T = TypeVar("T", bound=messages.Message)
HEALTH = ("/healthz", "/readyz")
KEPT = 100
"""Message numbers remembered for each worker. A worker repeats one message at a time."""
MOST_WORKERS = 10_000
"""If there are more workers, the one that has been known for longest is forgotten."""


class MasterServer:
    """Serves one job on one address.

    Args:
      extensions: answer further requests.
    """

    def __init__(
        self, core: Core, token: str, term: int, extensions: Iterable[Extension] = ()
    ) -> None:
        self._core = core
        self._term = term
        self._token, self._read_only_token = token, control.read_only_token(token)
        self._key = secrets.token_bytes(control.TOKEN_BYTES)
        self._ports: list[ListeningPort] = []
        self._repeated = RepeatedMessages()
        self._extensions = tuple(extensions)
        self._open_paths = {r.path for e in self._extensions for r in e.open_routes()} | {*HEALTH}
        self.rendezvous = RendezvousStore()
        self.address = ""
        self._store_address = ""

    async def start(
        self,
        host: str,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        given_out: str = "",
    ) -> None:
        """Binds to `port` of `host`, or to a free port, and sets `address`.

        With `tls`, the rendezvous store gets a plain port of its own: Horovod speaks no TLS.
        """
        store = web.route("*", _STORE, self._store)
        if tls is None:
            self.address = self._store_address = await self._open(host, port, store, *self._api())
        else:
            self.address = await self._open(host, port, *self._api(), tls=tls)
            self._store_address = await self._open(host, 0, store)
        if given_out:
            self.address = host_port.joined(given_out, host_port.split(self.address)[1])

    def _api(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/events", self._events),
            web.post("/v1/enter", self._enter),
            web.get("/v1/updates", self._updates),
            web.get("/v1/input", self._input),
            web.post("/v1/claim", self._claim),
            web.post("/v1/release", self._release),
            web.get("/v1/root", self._root),
            web.get("/v1/status", self._status),
            web.post("/v1/workers", self._workers),
            web.post("/v1/slots", self._slots),
            web.post("/v1/stop", self._stop),
            web.get("/v1/job", self._job),
            web.post("/v1/join", self._join),
            web.post("/v1/exit", self._exit),
            web.get("/v1/openapi.json", _openapi),
            *(web.get(path, _healthy) for path in HEALTH),
            *(r for e in self._extensions for r in (*e.routes(), *e.open_routes())),
        ]

    async def _open(
        self, host: str, port: int, *routes: web.RouteDef, tls: ssl.SSLContext | None = None
    ) -> str:
        app = web.Application(
            middlewares=[report_errors, self._authenticate],
            client_max_size=MAX_MESSAGE_BYTES,
        )
        app.on_response_prepare.append(self._add_term)
        app.on_shutdown.extend(extension.end for extension in self._extensions)
        app.add_routes(routes)
        listening = ListeningPort(app, tls)
        self._ports.append(listening)
        return await listening.open(host, port)

    async def stop(self) -> None:
        """Closes all connections and ports."""
        for listening in self._ports:
            await listening.close()

    def rendezvous_of(self, round_number: int) -> str:
        """Returns the value of HOROVOD_GLOO_RENDEZVOUS_ADDR for a round, without the master's host.

        Each worker puts the host by which it reaches the master before this value.
        """
        _, port = host_port.split(self._store_address)
        return f":{port}/{self._secret_of(round_number)}/round{round_number}"

    def _secret_of(self, round_number: int) -> str:
        """Returns the secret of a round, which only its members are told."""
        return hmac.digest(self._key, str(round_number).encode(), "sha256").hex()

    async def _add_term(self, request: web.Request, response: web.StreamResponse) -> None:
        response.headers[protocol.TERM_HEADER] = str(self._term)

    @web.middleware
    async def _authenticate(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "")
        if self._is_for_anybody(request):
            return await handler(request)
        reads = self._is_token(given, self._read_only_token)
        if reads and _path_of(request) not in openapi.READ:
            return refusal(403, MAY_ONLY_READ)
        if not (reads or self._is_of_member(request) or self._is_token(given, self._token)):
            response = refusal(401, _what_is_wrong_with(given))
            response.force_close()
            return response
        for listening in self._ports:
            listening.know(request.transport)
        if number_in(request.headers, protocol.TERM_HEADER, "0") > self._term:
            return refusal(409, "Another master has replaced this one, which decides nothing more.")
        return await handler(request)

    def _is_for_anybody(self, request: web.Request) -> bool:
        """Whether a request asks for a page, which tells nothing about the job."""
        return _path_of(request) in self._open_paths

    def _is_token(self, authorization: str, token: str) -> bool:
        given = authorization.encode("utf-8", "surrogateescape")
        return hmac.compare_digest(given, f"Bearer {token}".encode())

    def _is_of_member(self, request: web.Request) -> bool:
        """Whether a request to the store shows the secret of its round."""
        secret, number = (request.match_info.get(name) for name in ("secret", "round"))
        if secret is None or number is None:
            return False
        return hmac.compare_digest(secret, self._secret_of(int(number)))

    async def _events(self, request: web.Request) -> web.Response:
        for_decoding: type = protocol.WorkerEvent  # type: ignore[assignment]
        event: protocol.WorkerEvent = await self._told(request, for_decoding)
        number = number_in(request.query, "number") if "number" in request.query else None
        if number is None or not self._repeated.is_repeated(event.worker_id, number):
            self._core.workers.on_worker_event(event)
        await self._core.kept()
        return answer(control.ChangeReply(accepted=True, text=""))

    async def _told(self, request: web.Request, kind: type[T]) -> T:
        """Reads a worker's message, and refuses one that cannot be true."""
        message = messages.decode(await request.read(), kind)
        if what := self._core.workers.impossible_in(message):
            raise messages.ProtocolError(what)
        return message

    async def _enter(self, request: web.Request) -> web.Response:
        entry = await self._told(request, protocol.EnterRequest)
        return answer(await self._core.workers.enter(entry))

    async def _updates(self, request: web.Request) -> web.Response:
        worker_id, version = request.query.get("worker_id", ""), number_in(request.query, "version")
        if not worker_id:
            raise messages.ProtocolError("No worker_id was given, expected a worker id.")
        return answer(await self._core.workers.update_after(worker_id, version))

    async def _input(self, request: web.Request) -> web.Response:
        return answer(self._core.workers.input_position())

    async def _claim(self, request: web.Request) -> web.Response:
        wish = await self._told(request, protocol.ClaimRequest)
        return answer(await self._core.workers.claim(wish))

    async def _release(self, request: web.Request) -> web.Response:
        wish = messages.decode(await request.read(), protocol.ReleaseRequest)
        self._core.workers.release(wish)
        return answer(control.ChangeReply(accepted=True, text=""))

    async def _root(self, request: web.Request) -> web.Response:
        return answer(self._core.workers.root())

    async def _status(self, request: web.Request) -> web.Response:
        return answer(self._core.status())

    async def _workers(self, request: web.Request) -> web.Response:
        change = messages.decode(await request.read(), control.ChangeRequest)
        if change.mistake:
            raise messages.ProtocolError(change.mistake)
        reply = self._core.change_workers(change)
        await self._core.kept()
        return answer(reply)

    async def _slots(self, request: web.Request) -> web.Response:
        change = messages.decode(await request.read(), control.SlotsRequest)
        if change.mistake:
            raise messages.ProtocolError(change.mistake)
        reply = self._core.change_slots(change)
        await self._core.kept()
        return answer(reply, 200 if reply.accepted else control.CONFLICT)

    async def _stop(self, request: web.Request) -> web.Response:
        wish = messages.decode(await request.read(), control.StopRequest)
        return answer(self._core.stop_job(wish))

    async def _job(self, request: web.Request) -> web.Response:
        return answer(self._core.joiners.description)

    async def _join(self, request: web.Request) -> web.Response:
        wish = messages.decode(await request.read(), control.JoinRequest)
        reply = self._core.joiners.join(wish)
        await self._core.kept()
        return answer(reply)

    async def _exit(self, request: web.Request) -> web.Response:
        told = messages.decode(await request.read(), control.ExitRequest)
        return answer(self._core.joiners.ended(told))

    async def _store(self, request: web.Request) -> web.Response:
        if not self._is_of_member(request):
            return refusal(401, "Only members of a round use its rendezvous store.")
        return await self.rendezvous.answer(request, int(request.match_info["round"]))


def _path_of(request: web.Request) -> str:
    """Returns the path of the route that a request has found; empty if there is none."""
    resource = request.match_info.route.resource
    return "" if resource is None else resource.canonical


async def _healthy(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def _openapi(request: web.Request) -> web.Response:
    return web.json_response(openapi.description())


def _what_is_wrong_with(authorization: str) -> str:
    """Says what is wrong with a request that is not authorised, without repeating any of it."""
    expected = 'the header "Authorization: Bearer TOKEN"'
    where = "TOKEN is `token` in master.json of the job's directory, another one for each start."
    if not authorization:
        return f"The token is missing, expected {expected}. {where}"
    if not authorization.startswith("Bearer "):
        return f"The token is not given as expected, with {expected}. {where}"
    return f"The token is wrong: it is not that of this job. {where}"


class RepeatedMessages:
    """Knows the newest messages of each worker by their numbers."""

    def __init__(self) -> None:
        self._numbers: dict[str, collections.deque[int]] = {}

    def is_repeated(self, worker_id: str, number: int) -> bool:
        """Whether this message has come before. Remembers the message."""
        known = self._numbers.setdefault(worker_id, collections.deque(maxlen=KEPT))
        if len(self._numbers) > MOST_WORKERS:
            del self._numbers[next(iter(self._numbers))]
        if number in known:
            return True
        known.append(number)
        return False
