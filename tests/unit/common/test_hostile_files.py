"""Whatever stands in a file that is read: it is used, left out, or said to be wrong."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hvd_elastic_keras.audit import ledger_file, report
from hvd_elastic_keras.common import control, events, files
from hvd_elastic_keras.common.errors import ConfigurationError, ElasticError, LedgerError
from hvd_elastic_keras.master import journal
from hvd_elastic_keras.observe import timeline
from hvd_elastic_keras.observe.event_log import EventLog
from hvd_elastic_keras.settings.job_options import JobOptions
from hvd_elastic_keras.settings.job_spec import JobSpec
from hvd_elastic_keras.settings.training_config import TrainingConfig
from hvd_elastic_keras.state import packing
from hvd_elastic_keras.state.checkpoint import manifest
from tests.harness.json_values import ANY, matching, nearly

drawn = settings(
    max_examples=50, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
DEEP = b"[" * 100_000
LONG_NUMBER = b"9" * 5000
OF_ENTRIES, COMPONENTS = (
    msgspec.json.schema(events.AnyEntry),
    msgspec.json.schema_components([events.AnyEntry], ref_template="{name}")[1],
)


def written(value: object) -> bytes:
    return json.dumps(value).encode()


LINES = st.lists(
    st.binary(max_size=50)
    | st.sampled_from([DEEP, LONG_NUMBER, b'{"event":' + DEEP])
    | ANY.map(written)
    | nearly(matching({"anyOf": OF_ENTRIES["anyOf"]}, COMPONENTS)).map(written),
    max_size=5,
).map(b"\n".join)


def in_file(data: bytes, read: Callable[[Path], Any], name: str = "file") -> Any:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, name)
        path.write_bytes(data)
        return read(path)


@drawn
@given(LINES)
def test_any_lines_may_stand_in_events_jsonl(data: bytes) -> None:
    found = in_file(data + b"\n", report.read)
    assert len(found.unreadable) + len(found.entries) <= data.count(b"\n") + 1
    text = data.decode(errors="replace")
    assert all("event" in entry for entry in files.event_entries(text.splitlines()))
    timeline.entries_of_last_run(text.splitlines())


@drawn
@given(LINES)
def test_a_log_goes_on_behind_any_lines(data: bytes) -> None:
    def write(path: Path) -> list[bytes]:
        log = EventLog(path)
        log.write(events.JobStopping(reason="interrupted"))
        log.close()
        return path.read_bytes().splitlines()

    last = json.loads(in_file(data, write)[-1])
    assert last["reason"] == "interrupted"


@drawn
@given(LINES)
def test_any_text_may_stand_in_a_timeline(data: bytes) -> None:
    assert all(isinstance(e, dict) for e in timeline.parse(io.StringIO(data.decode("latin-1"))))


@drawn
@given(LINES)
def test_lines_that_are_no_entries_are_passed_over_in_a_journal(data: bytes) -> None:
    lines = [b"%08x %b\n" % (zlib.crc32(line), line) for line in data.split(b"\n")]
    for content in (data, b"".join(lines)):
        assert in_file(content, lambda path: journal.Journal(path).last) is None


@drawn
@given(st.binary(max_size=100) | ANY.map(written))
@example(DEEP)
@example(b'{"version": 1, "files": {"state.json": {"bytes": -1, "crc32c": "x"}}}')
def test_a_manifest_that_is_none_is_a_damage(line: bytes) -> None:
    line = line.replace(b"\n", b" ")
    whole = b"%s\n%08x\n" % (line, google_crc32c.value(line))
    for data in (line, whole):
        with pytest.raises(ValueError):  # noqa: PT011  of any kind
            in_file(data, lambda path: manifest.read(path.parent), manifest.NAME)


@drawn
@given(ANY, st.binary(max_size=20))
@example([{packing.MARK: None}], b"")
@example({packing.MARK: [-3, 2]}, b"abcdef")
@example({packing.MARK: [0, "x"]}, b"abcdef")
@example({packing.MARK: [1, 2, 3]}, b"abcdef")
def test_a_state_is_read_or_its_places_of_bytes_are_refused(tree: object, data: bytes) -> None:
    try:
        packing.loads(json.dumps(tree), data)
    except ValueError:
        assert packing.MARK in json.dumps(tree)


@pytest.mark.parametrize("text", [DEEP, LONG_NUMBER, b"", b"\xff"])
def test_a_state_that_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  of any kind
        packing.loads(text, b"")


SPEC = JobSpec(TrainingConfig(global_batch_size=8, epochs=1))


def spec_content() -> dict[str, Any]:
    def saved(path: Path) -> Any:
        SPEC.save(path)
        return json.loads(path.read_text())

    content: dict[str, Any] = in_file(b"", saved)
    return content


@drawn
@given(nearly(st.builds(spec_content)))
@example([])
def test_a_job_json_is_read_or_refused(content: object) -> None:
    def read(path: Path) -> None:
        with contextlib.suppress(ConfigurationError):
            JobSpec.load(path)

    in_file(written(content), read)


ASKED = JobOptions({"balance": "speed"}, {"audit": True, "keep_checkpoints": 3})


@drawn
@given(nearly(st.builds(lambda: json.loads(ASKED.encode()))))
def test_options_are_read_or_refused(content: object) -> None:
    with contextlib.suppress(ConfigurationError):
        JobOptions.decode(json.dumps(content))


ENDPOINT = control.Endpoint(version=1, address="127.0.0.1:1", token="t" * 64, pid=1)


@drawn
@given(nearly(st.builds(lambda: msgspec.to_builtins(ENDPOINT))).map(written) | st.binary())
def test_a_master_json_is_read_or_refused_without_its_token(data: bytes) -> None:
    def read(path: Path) -> None:
        told = ""
        try:
            files.read_endpoint(path.parent)
        except ElasticError as error:
            told = str(error)
        assert ENDPOINT.token not in told

    in_file(data, read, files.MASTER)


@drawn
@given(LINES)
def test_a_ledger_is_read_or_said_to_be_damaged(data: bytes) -> None:
    for read in (lambda path: list(ledger_file.LinesOf(path)), _last_lines):
        with contextlib.suppress(LedgerError):
            in_file(data + b"\n", read)


def _last_lines(path: Path) -> object:
    return ledger_file.lines_from(path, 0)
