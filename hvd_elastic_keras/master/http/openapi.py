"""Describes the endpoint in OpenAPI 3.1, from the types of its messages."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from hvd_elastic_keras._version import __version__
from hvd_elastic_keras.common import control, protocol

READ = ("/v1/status", "/v1/stream", "/metrics", "/v1/openapi.json")
"""The requests for which a token is enough that only reads; see `control.read_only_token`."""
_TEMPLATE = "#/components/schemas/{name}"


@dataclasses.dataclass(frozen=True)
class Operation:
    """One request and its answer. `query` lists the parameters of the request."""

    method: str
    path: str
    summary: str
    reply: Any
    message: Any = None
    query: tuple[tuple[str, str, bool], ...] = ()
    """Name, type and whether it is required."""
    content_type: str = "application/json"
    """The type of the answer. An answer that is no JSON is described as text (`reply` is `str`)."""
    full: str = ""
    """The meaning of status 503; empty if this request is never answered with it."""


WORKERS: Any = protocol.WorkerEvent
OPERATIONS = (
    Operation(
        "POST",
        "/v1/events",
        "A worker tells what happened",
        control.ChangeReply,
        WORKERS,
        (("number", "integer", False),),
    ),
    Operation(
        "POST",
        "/v1/enter",
        "A worker wants into the next round",
        protocol.EnterReply,
        protocol.EnterRequest,
    ),
    Operation(
        "GET",
        "/v1/updates",
        "What changed for a worker",
        protocol.WorkerUpdate,
        query=(("worker_id", "string", True), ("version", "integer", True)),
    ),
    Operation("GET", "/v1/input", "What newcomers ask", protocol.InputReply),
    Operation(
        "POST",
        "/v1/claim",
        "A worker wants to do what only one is to do",
        protocol.ClaimReply,
        protocol.ClaimRequest,
    ),
    Operation(
        "POST",
        "/v1/release",
        "A worker has done that, or has failed",
        control.ChangeReply,
        protocol.ReleaseRequest,
    ),
    Operation("GET", "/v1/job", "What a joiner has to know", control.JobDescription),
    Operation(
        "POST",
        "/v1/join",
        "A worker is about to start on a host",
        control.JoinReply,
        control.JoinRequest,
    ),
    Operation(
        "POST",
        "/v1/exit",
        "The process of a worker that has joined is gone",
        control.ExitReply,
        control.ExitRequest,
    ),
    Operation("GET", "/v1/root", "Who stands for all workers", protocol.RootReply),
    Operation("GET", "/v1/status", "Phase, round and workers", control.JobStatus),
    Operation(
        "POST",
        "/v1/workers",
        "More or fewer workers",
        control.ChangeReply,
        control.ChangeRequest,
    ),
    Operation(
        "POST",
        "/v1/slots",
        "Slots are granted or revoked",
        control.SlotsReply,
        control.SlotsRequest,
    ),
    Operation(
        "POST",
        "/v1/stop",
        "The job stops after the current step",
        control.ChangeReply,
        control.StopRequest,
    ),
    Operation(
        "GET",
        "/v1/stream",
        "Server-sent events, each with JSON as its data: the job's course, then what is added to "
        "it, and the status every second; it ends with the job",
        str,
        content_type="text/event-stream",
        full="Too many streams are open already",
    ),
    Operation(
        "GET",
        "/v1/log",
        "The end of a worker's log",
        str,
        query=(("worker_id", "string", True),),
        content_type="text/plain",
    ),
    Operation(
        "GET",
        "/metrics",
        "Status and course of the job in the text format of Prometheus",
        str,
        content_type="text/plain",
    ),
)


def description() -> dict[str, Any]:
    """Describes the whole endpoint, except for the rendezvous store: that is Horovod's protocol."""
    types = [t for o in OPERATIONS for t in (o.reply, o.message) if t is not None]
    types.append(control.ChangeReply)
    schemas, components = msgspec.json.schema_components(types, ref_template=_TEMPLATE)
    schema_of = {id(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(
            operation, schema_of
        )
    return {
        "openapi": "3.1.0",
        "info": {"title": "hvd_elastic_keras", "version": __version__},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(operation: Operation, schema_of: dict[int, Any]) -> dict[str, Any]:
    refusal = _content(schema_of[id(control.ChangeReply)])
    content = {operation.content_type: {"schema": schema_of[id(operation.reply)]}}
    statuses = {"400": "Not understood, or cannot be true", "401": "The token is wrong"}
    statuses |= {} if operation.path in READ else {"403": "The token may only read"}
    statuses |= {"503": operation.full} if operation.full else {}
    result: dict[str, Any] = {
        "summary": operation.summary,
        "parameters": [
            {"name": name, "in": "query", "required": required, "schema": {"type": kind}}
            for name, kind, required in operation.query
        ],
        "responses": {
            "200": {"description": "Taken", "content": content},
            **{n: {"description": text, "content": refusal} for n, text in statuses.items()},
        },
    }
    if operation.reply is control.SlotsReply:
        conflict = {"description": "This job cannot do it now"}
        result["responses"][str(control.CONFLICT)] = {
            **conflict,
            "content": _content(schema_of[id(operation.reply)]),
        }
    if operation.message is not None:
        content = _content(schema_of[id(operation.message)])
        result["requestBody"] = {"required": True, "content": content}
    return result


def _content(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
