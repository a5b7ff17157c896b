"""The metadata services of Google Cloud and AWS: what their documents say about preemption."""

from __future__ import annotations

import json
import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

LIMIT_S = 60.0


class MetadataService:
    """Answers on a free port inside of a `with` block.

    Attributes:
      preempted: the answer of Google Cloud.
      instance_action: the answer of AWS; None if the machine stays.
      fails: whether every request is answered with a server error.
      failed: a semaphore released with each such error.
      tokens_given: number of tokens that AWS has given out.
    """

    def __init__(self) -> None:
        self.preempted = False
        self.instance_action: dict[str, Any] | None = None
        self.fails = False
        self.failed = threading.Semaphore(0)
        self.tokens_given = 0
        self._tokens: set[str] = set()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service._answer(self)

            def do_PUT(self) -> None:
                service._answer(self)

            def log_message(self, *_: object) -> None:
                """Logs nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.host = f"127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(LIMIT_S)

    def forget_tokens(self) -> None:
        """Makes all tokens of AWS expire."""
        self._tokens.clear()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        code, text = self._found(request)
        if code == 503:
            self.failed.release()
        body = text.encode()
        request.send_response(code)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def _found(self, request: BaseHTTPRequestHandler) -> tuple[int, str]:
        if self.fails:
            return 503, ""
        match request.command, request.path:
            case "GET", "/computeMetadata/v1/instance/preempted":
                known = request.headers.get("Metadata-Flavor") == "Google"
                return (200, str(self.preempted).upper()) if known else (403, "")
            case "PUT", "/latest/api/token":
                return self._token(request)
            case "GET", "/latest/meta-data/spot/instance-action":
                return self._action(request)
        return 404, ""

    def _token(self, request: BaseHTTPRequestHandler) -> tuple[int, str]:
        lasts = request.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        if not (lasts.isdecimal() and 1 <= int(lasts) <= 21600):
            return 400, ""
        self.tokens_given += 1
        token = secrets.token_urlsafe()
        self._tokens.add(token)
        return 200, token

    def _action(self, request: BaseHTTPRequestHandler) -> tuple[int, str]:
        if request.headers.get("X-aws-ec2-metadata-token") not in self._tokens:
            return 401, ""
        if self.instance_action is None:
            return 404, ""
        return 200, json.dumps(self.instance_action)
