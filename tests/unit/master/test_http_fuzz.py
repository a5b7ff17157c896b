"""Bad requests, drawn at random from the endpoint's description.

They must not cause an error of the master's own, and refused requests must change nothing.
HVD_ELASTIC_FUZZ=10000 draws this many requests of each kind.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hvd_elastic_keras.common import protocol
from hvd_elastic_keras.master import job_end
from hvd_elastic_keras.master.http import openapi, rendezvous, server
from tests.harness.idle_master import IdleMaster
from tests.harness.json_values import ANY, matching, nearly

DESCRIPTION = openapi.description()
COMPONENTS = DESCRIPTION["components"]["schemas"]
BODIES = {
    (path, method.upper()): operation.get("requestBody", {"content": {"application/json": {}}})[
        "content"
    ]["application/json"].get("schema")
    for path, methods in DESCRIPTION["paths"].items()
    for method, operation in methods.items()
}
ENDLESS = "/v1/stream"
"""A path whose answer lasts as long as the job."""
ENDING = sorted(operation for operation in BODIES if operation[0] != ENDLESS)
EXAMPLES = int(os.environ.get("HVD_ELASTIC_FUZZ", "100"))
drawn = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


class Masters:
    """A master. It is replaced as soon as a request has changed the job."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directories = (directory / str(n) for n in itertools.count())
        self._stack = stack
        self._begin()

    def _begin(self) -> None:
        self._stack.close()
        self.master = self._stack.enter_context(IdleMaster(next(self._directories)))
        self._before = self.master.status()

    def judge(self, method: str, path: str, body: bytes, headers: dict[str, str] | None) -> int:
        """Sends a request; returns the status of the answer, which is never a server error."""
        status, answer = self.master.call(method, path, body, headers)
        assert status < 500, (method, path, body, answer)
        changed = self.master.status() != self._before
        assert status == 200 or not changed, (method, path, body, answer)
        self.unchanged = not changed
        if changed:
            self._begin()
        return status


@pytest.fixture(scope="module")
def masters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Masters]:
    with pytest.MonkeyPatch.context() as patched, ExitStack() as stack:
        patched.setattr(protocol, "LONG_POLL_S", 0.01)
        patched.setattr(rendezvous, "HOLD_S", 0.01)
        # No process tells the master that a worker of `/v1/join` has ended.
        patched.setattr(job_end, "AFTER_KILL_S", 0.01)
        yield Masters(tmp_path_factory.mktemp("fuzz"), stack)


@pytest.mark.parametrize("path", [path for (path, _), body in BODIES.items() if body])
def test_bodies_that_are_nearly_right_are_refused_or_taken(masters: Masters, path: str) -> None:
    schema = BODIES[path, "POST"]

    @drawn
    @given(nearly(matching(schema, COMPONENTS)))
    def check(value: object) -> None:
        masters.judge("POST", path, json.dumps(value).encode(), None)

    check()


@drawn
@given(
    st.sampled_from(sorted(BODIES)),
    st.one_of(
        st.binary(max_size=200),
        ANY.map(lambda value: json.dumps(value).encode()),
        st.sampled_from([b"[" * 100_000, b'{"reading":' * 100_000, b"1" * 5000]),
    ),
)
def test_any_bytes_in_place_of_a_message_are_refused(
    masters: Masters, operation: tuple[str, str], body: bytes
) -> None:
    path, _ = operation
    # `/v1/workers` refuses with 200 and `accepted` false.
    assert masters.judge("POST", path, body, None) in (200, 400, 404, 405)
    assert masters.unchanged


TEXTS = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=30)


@drawn
@given(
    st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE"]),
    st.sampled_from([*(path for path, _ in ENDING), "", "/v1", "/" + "0" * 64 + "/round1:1"]),
    TEXTS,
    st.dictionaries(st.sampled_from(["number", "worker_id", "version", "x"]), TEXTS),
)
def test_any_path_and_query_is_answered_without_a_failure(
    masters: Masters, method: str, path: str, rest: str, query: dict[str, str]
) -> None:
    asked = "&".join(f"{name}={text}" for name, text in query.items())
    masters.judge(method, f"/{path}{rest}?{asked}"[1:] or "/", b"", None)


@drawn
@given(st.sampled_from(sorted(BODIES)), TEXTS, st.binary(max_size=50))
def test_nobody_guesses_the_token(
    masters: Masters, operation: tuple[str, str], guess: str, body: bytes
) -> None:
    path, method = operation
    headers = {"Authorization": f"Bearer {guess}"}
    assert masters.judge(method, path, body, headers) == 401


def test_the_description_has_all_requests_and_no_other(masters: Masters) -> None:
    status, body = masters.master.call("GET", "/v1/openapi.json")
    assert status == 200
    assert json.loads(body) == json.loads(json.dumps(DESCRIPTION))
    described = {*BODIES, ("/v1/openapi.json", "GET")}
    rows = re.findall(r"^\| (GET|POST) +(/[^,\s]+)(?:, (/\S+))?", str(server.__doc__), re.MULTILINE)
    told = {(p.partition("?")[0], method) for method, *paths in rows for p in paths if p}
    endpoint = masters.master.controller._server
    served = {(r.path, r.method) for r in endpoint._api() if r.path not in endpoint._open_paths}
    assert told == described == served
    assert masters.master.call("GET", "/v1/openapi.json", headers={})[0] == 401


def test_all_parts_that_the_description_names_are_in_it() -> None:
    named = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(DESCRIPTION)))
    assert named == set(COMPONENTS)
