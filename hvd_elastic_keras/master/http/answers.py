"""Answers of the endpoint: messages, and errors in one form."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from hvd_elastic_keras.common import control, messages

MAX_DIGITS = 18
"""Limit for a number in a query: more digits do not fit into 64 bits."""
_FOR_PEOPLE = "GET /v1/status, POST /v1/slots, POST /v1/stop, POST /v1/workers"
log = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def answer(message: messages.Message, status: int = 200) -> web.Response:
    """Returns a message as an answer."""
    body = messages.encode(message)
    return web.Response(status=status, body=body, content_type="application/json")


def refusal(status: int, text: str, cause: web.HTTPException | None = None) -> web.Response:
    """Returns the answer to a request that is refused, or has failed."""
    response = answer(control.ChangeReply(accepted=False, text=text), status)
    if cause is not None and "Allow" in cause.headers:
        response.headers["Allow"] = cause.headers["Allow"]
    return response


def number_in(given: Mapping[str, str], name: str, default: str = "") -> int:
    """Returns a whole number from a query or from headers.

    Raises:
      messages.ProtocolError: it is missing without a default, or is something else.
    """
    text = given.get(name, default)
    if not (text.isascii() and text.isdecimal()) or len(text) > MAX_DIGITS:
        raise messages.ProtocolError(f"{name}={text[:40]!r} was given, expected a whole number.")
    return int(text)


@web.middleware
async def report_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answers all errors in the same form."""
    what = f"{request.method} {request.path}"
    try:
        return await handler(request)
    except messages.ProtocolError as error:
        return refusal(400, str(error))
    except web.RequestPayloadError as error:
        return refusal(400, f"{what} has a body that cannot be read: {error}")
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        return refusal(error.status, f"{what} was requested, expected {allowed}.", error)
    except web.HTTPNotFound as error:
        text = f"{what} was requested, which is not part of this API. Use one of: {_FOR_PEOPLE}."
        return refusal(error.status, text, error)
    except web.HTTPException as error:
        return refusal(error.status, f"{what} is refused: {error.text}", error)
    except ConnectionResetError:
        # The worker has ended in the middle of its request: nobody reads this answer.
        return web.Response(status=400)
    except Exception:
        log.exception("%s failed", what)
        return refusal(500, f"{what} failed by an error of the master; its console shows it.")
