"""Options of a whole job: their values, and their way to the workers as one JSON value."""

from __future__ import annotations

import pytest

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.settings.job_options import JobOptions
from hvd_elastic_keras.settings.options import NO_OPTIONS, RunOptions


def test_a_worker_reads_what_the_launcher_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = JobOptions({"deterministic": True}, {"audit": True})
    monkeypatch.setenv(env.OPTIONS, asked.encode())
    assert env.job_options() == asked
    assert env.run_options() == RunOptions(deterministic=True, audit=True)


def test_people_write_options_by_their_names_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.OPTIONS, '{"audit": true}')
    assert env.run_options() == RunOptions(audit=True)
    assert env.run_options({"audit": False}) == NO_OPTIONS, "the script counts before it"


def test_nothing_is_asked_for_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(env.OPTIONS, raising=False)
    assert env.run_options() == NO_OPTIONS


def test_only_options_are_taken_from_a_configuration() -> None:
    found = RunOptions.of({"learning_rate": 0.1, "audit": False}, {"audit": True})
    assert found == NO_OPTIONS


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"deterministic": "yes"}, "deterministic='yes' was given, expected a value that is True"),
        ({"audit": 1}, "audit=1 was given"),
        ({"skip_corrupt": None}, "skip_corrupt=None was given"),
        ({"balance": "fair"}, "balance='fair' was given, expected a value that is 'even' or"),
        ({"export": "onnx"}, "export='onnx' was given, expected .* 'none' or 'saved_model'"),
        ({"compression": "zip"}, "compression='zip' was given, expected .* 'none', 'fp16' or"),
        ({"checkpoint_every_n_epochs": True}, "checkpoint_every_n_epochs=True .* a whole number"),
        ({"checkpoint_every_n_steps": 0.5}, "checkpoint_every_n_steps=0.5 .* a whole number"),
        ({"checkpoint_every_n_steps": -1}, "checkpoint_every_n_steps=-1 .* a value >= 0"),
        ({"checkpoint_every_minutes": "5"}, "checkpoint_every_minutes='5' .* is a number"),
        ({"checkpoint_every_minutes": float("nan")}, "checkpoint_every_minutes=nan .* a number"),
        ({"keep_checkpoints": 0}, "keep_checkpoints=0 .* a value >= 1"),
    ],
)
def test_a_wrong_value_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        NO_OPTIONS.replaced(values)


@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_compression_is_refused_with_deterministic(compression: str) -> None:
    asked = JobOptions({"compression": compression}, {})
    with pytest.raises(ConfigurationError, match=f"compression='{compression}'.* Leave one"):
        asked.with_script({"deterministic": True})


def test_what_the_command_line_takes_back_excludes_nothing() -> None:
    found = JobOptions({"deterministic": False, "compression": "fp16"})
    assert found.with_script({"deterministic": True}).compression == "fp16"


@pytest.mark.parametrize(
    "text",
    [
        *("1", "{", '{"determinstic": true}', '{"audit": "yes"}', '{"balance": "fair"}'),
        *('{"command_line": 1}', '{"command_line": {"x": 1}}', '{"command_line": {"audit": 1}}'),
    ],
)
def test_text_that_holds_no_options_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.OPTIONS, text)
    with pytest.raises(ConfigurationError, match=r"(was|were) given"):
        env.run_options()
