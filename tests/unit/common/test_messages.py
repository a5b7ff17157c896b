"""Messages on the wire, the environment of a worker, files and the console."""

from __future__ import annotations

import io
import json
import os
import stat
from pathlib import Path

import pytest

from hvd_elastic_keras.common import events, files, messages, protocol
from hvd_elastic_keras.common.errors import ConfigurationError, ElasticError
from hvd_elastic_keras.observe.console import Console
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.settings.job_options import JobOptions

# --- protocol ----------------------------------------------------------------------------

EPOCH_END = events.EpochEnd(epoch=0, step=3, metrics={"loss": 0.5, "n": [1, None]})
EVENTS = [
    protocol.Joined(worker_id="w0", training=1, pid=7, num_micro_batches=8, warm_up_s=1.5),
    protocol.Heartbeat(worker_id="w0", training=1, round=1, step=2, progress=3, phase="training"),
    protocol.Running(worker_id="w0", round=1, step=2),
    protocol.Leaving(worker_id="w0", reason="SIGTERM"),
    protocol.Done(worker_id="w0", training=1, step=9),
    protocol.Refused(worker_id="w0", message="epochs=0 was given"),
    protocol.Console(worker_id="w0", text="é\r\n"),
    protocol.Record(worker_id="w0", training=1, entry=EPOCH_END),
    protocol.Notice(worker_id="w0", training=1, text="a line", entry=EPOCH_END, prefix="[w0] "),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
def test_an_event_comes_back_as_the_type_it_was(event: messages.Message) -> None:
    assert messages.decode(messages.encode(event), protocol.WorkerEvent) == event


@pytest.mark.parametrize(
    "entry",
    [
        {"event": "of_another_release"},
        {"event": "epoch_end", "epoch": "x", "step": 1, "metrics": {}},
        {"event": "job_stopping", "reason": "only the master writes this"},
    ],
    ids=lambda entry: entry["event"],
)
def test_an_entry_that_workers_do_not_send_is_refused(entry: dict[str, object]) -> None:
    message = {"type": "record", "worker_id": "w0", "training": 1, "entry": entry}
    with pytest.raises(messages.ProtocolError, match="expected a"):
        messages.decode(json.dumps(message), protocol.WorkerEvent)


def test_an_assignment_comes_back_as_it_was() -> None:
    place = protocol.Assignment(
        round=2,
        rank=1,
        size=3,
        local_rank=1,
        local_size=3,
        cross_rank=0,
        cross_size=1,
        members=("w4", "w0", "w2"),
        sync=True,
        root_has_state=True,
        rendezvous="host:1/secret/round2",
    )
    reply = protocol.EnterReply(assignment=place)
    assert messages.decode(messages.encode(reply), protocol.EnterReply) == reply


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"null",
        b"[]",
        b'{"type":"done"}',
        b'{"type":"done","worker_id":"w0","step":"x"}',
        b'{"type":"done","worker_id":"w0","step":1,"more":1}',
        b'{"worker_id":"w0","step":1}',
    ],
)
def test_anything_else_is_refused_with_what_was_received(data: bytes) -> None:
    with pytest.raises(messages.ProtocolError, match="protocol version 1") as caught:
        messages.decode(data, protocol.WorkerEvent)
    assert repr(data) in str(caught.value)
    assert isinstance(caught.value, ElasticError)


def test_a_long_message_is_cut_in_the_error_text() -> None:
    with pytest.raises(messages.ProtocolError) as caught:
        messages.decode(b"x" * 10_000, protocol.EnterRequest)
    assert len(str(caught.value)) < 500


# --- env ---------------------------------------------------------------------------------

WORKER = env.WorkerEnvironment(
    master="127.0.0.1:5000",
    token="very secret",
    worker_id="w3",
    job_dir="jobs/a b",
    keeper_pid=77,
    iface="eth0",
    hostname="a",
    gloo_timeout_s=5,
    options=JobOptions({"deterministic": True}, {"balance": "speed"}),
)


@pytest.fixture
def _no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in WORKER.to_variables():
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("_no_job")
def test_a_worker_reads_the_environment_that_its_launcher_wrote(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in WORKER.to_variables().items():
        monkeypatch.setenv(name, value)
    assert env.worker_environment() == WORKER


@pytest.mark.usefixtures("_no_job")
def test_a_process_without_a_launcher_has_no_worker_environment() -> None:
    assert env.worker_environment() is None


@pytest.mark.usefixtures("_no_job")
def test_what_is_left_out_has_the_documented_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (env.MASTER, env.TOKEN, env.WORKER_ID, env.JOB_DIR):
        monkeypatch.setenv(name, "x")
    assert env.worker_environment() == env.WorkerEnvironment("x", "x", "x", "x")


def test_the_token_is_not_shown() -> None:
    assert "very secret" not in repr(WORKER)


def test_every_variable_is_described_in_the_table_of_the_module() -> None:
    assert env.__doc__ is not None
    assert all(f"| {name} " in env.__doc__ for name in WORKER.to_variables())


def test_defaults_yield_to_the_environment_and_extras_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UNIT_A", "user")
    monkeypatch.delenv("UNIT_B", raising=False)
    child = env.child_environment({"UNIT_C": "extra"}, {"UNIT_A": "no", "UNIT_B": "default"})
    assert (child["UNIT_A"], child["UNIT_B"], child["UNIT_C"]) == ("user", "default", "extra")
    assert env.child_environment({"UNIT_A": "extra"}, {})["UNIT_A"] == "extra"


def test_variables_are_set_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIT_A", "1")
    monkeypatch.setenv("UNIT_B", "1")
    env.set_variables({"UNIT_A": None, "UNIT_B": "2", "UNIT_NEVER": None})
    env.set_defaults({"UNIT_B": "3"})
    assert "UNIT_A" not in os.environ
    assert os.environ["UNIT_B"] == "2"


# --- files -------------------------------------------------------------------------------


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "model.keras"
    path.write_text("old")

    def fail(temporary: Path) -> None:
        temporary.write_text("half")
        assert temporary.suffix == ".keras"
        assert path.read_text() == "old"
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError):
        files.write_atomically(path, fail)
    assert path.read_text() == "old"
    files.write_atomically(path, lambda p: p.write_text("new"))
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_json_is_written_for_people(tmp_path: Path) -> None:
    files.write_json(tmp_path / "history.json", {"loss": [0.5]})
    text = (tmp_path / "history.json").read_text()
    assert json.loads(text) == {"loss": [0.5]}
    assert text.endswith("}\n")


def test_the_endpoint_comes_back_and_only_the_user_can_read_it(tmp_path: Path) -> None:
    files.write_endpoint(tmp_path, "127.0.0.1:5000", "token")
    mode = (tmp_path / files.MASTER).stat().st_mode
    assert stat.S_IMODE(mode) == 0o600
    endpoint = files.read_endpoint(tmp_path)
    assert (endpoint.address, endpoint.token, endpoint.pid) == (
        "127.0.0.1:5000",
        "token",
        os.getpid(),
    )
    files.write_endpoint(tmp_path, "127.0.0.1:5001", "token")
    assert files.read_endpoint(tmp_path).address == "127.0.0.1:5001"
    files.remove_endpoint(tmp_path)
    files.remove_endpoint(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_without_a_job_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No running job was found") as caught:
        files.read_endpoint(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "--job_dir" in str(caught.value)


def test_an_endpoint_of_another_version_is_refused(tmp_path: Path) -> None:
    content = {"version": 2, "address": "127.0.0.1:1", "token": "t", "pid": 1}
    (tmp_path / files.MASTER).write_text(json.dumps(content))
    with pytest.raises(ElasticError, match="version"):
        files.read_endpoint(tmp_path)


# --- console -----------------------------------------------------------------------------


def test_a_line_does_not_run_into_a_progress_bar() -> None:
    stream = io.StringIO()
    console = Console(stream)
    console.line("one")
    console.raw("\r5/10 [====")
    console.worker_line("w1", "hello")
    console.raw("\r6/10 [=====")
    console.raw("")
    console.line("two")
    assert stream.getvalue() == (
        "[elastic] one\n\r5/10 [====\n[w1] hello\n\r6/10 [=====\n[elastic] two\n"
    )


def test_training_goes_on_when_nobody_reads_the_output_any_more() -> None:
    stream = io.StringIO()
    stream.close()
    Console(stream).line("nobody hears this")
