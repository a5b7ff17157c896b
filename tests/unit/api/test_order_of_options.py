"""One order for every option: command line, script, file, environment, configuration, default.

The table has all pairs of sources that may give an option, for each option; it is made of the
fields of `RunOptions`, so that a new option is in it by itself.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from absl.testing import flagsaver
from msgspec import UNSET

import hvd_elastic_keras.run  # noqa: F401 - defines the flags
from hvd_elastic_keras import ElasticCallback, TrainingConfig
from hvd_elastic_keras.cli import take_over
from hvd_elastic_keras.cli.flags import job_flags, settings
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.settings.option import definitions
from hvd_elastic_keras.settings.options import RunOptions

COMMAND_LINE, SCRIPT, FILE, ENVIRONMENT, CONFIGURATION, DEFAULT = ORDER = (
    *("command line", "script", "file", "environment", "configuration", "default"),
)
OPTIONS = {field.name: field for field in msgspec.structs.fields(RunOptions)}
OF_SCRIPTS = [name for name in inspect.signature(ElasticCallback).parameters if name in OPTIONS]
"""Options that a script may ask for."""


def others(name: str) -> Any:
    """A value of an option that is not the default."""
    field, (kind, option) = OPTIONS[name], definitions(RunOptions)[name]
    if kind is bool:
        return not field.default
    if kind is str:
        choices = option.choices or ["gs://somewhere/else" if name.endswith("_dir") else "val_loss"]
        return next(choice for choice in choices if choice != field.default)
    return field.default + 3


def written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class Given:
    """What each source says of one option, and which value counts in a training."""

    def __init__(self, name: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._name = name
        self._file = directory / "job.toml"
        self._monkeypatch = monkeypatch
        self._words: list[str] = []
        self._script: dict[str, Any] = {}
        self._config: dict[str, Any] = {"learning_rate": 0.1}

    def by(self, source: str, value: Any) -> None:
        text = written(value)
        if source == COMMAND_LINE:
            self._words.append(f"--{self._name}={text}")
        elif source == SCRIPT:
            self._script[self._name] = value
        elif source == FILE:
            self._file.write_text(f'{self._name} = "{text}"\n')
            self._words.append(f"--config={self._file}")
        elif source == ENVIRONMENT:
            self._monkeypatch.setenv(f"{env.RUN_PREFIX}{self._name.upper()}", text)
        elif source == CONFIGURATION:
            self._config[self._name] = value

    def counts(self, asks: type[TrainingConfig | ElasticCallback]) -> Any:
        """By the launcher, the variable that its workers get, and the script there."""
        found = settings.resolved(self._words)
        first = self._encoded(found)
        command = take_over.what_was_asked_for(found.words)
        again = settings.resolved(command, found.sources)
        assert self._encoded(again) == first, "started again by --resume, it is the same"
        self._monkeypatch.setenv(env.OPTIONS, first)
        if asks is TrainingConfig:
            config = TrainingConfig(**self._script)
            return getattr(env.run_options(config.asked), self._name)
        return getattr(ElasticCallback(**self._script)._options, self._name)

    def _encoded(self, found: settings.Settings) -> str:
        with flagsaver.flagsaver():
            settings.parse_flags(["run", *found.words])
            return job_flags.given_options(self._config, found.sources).encode()


def pairs(name: str) -> Iterator[tuple[str, str]]:
    """The source of an option that counts, and one after it."""
    return itertools.combinations([s for s in ORDER if s != SCRIPT or name in OF_SCRIPTS], 2)


@pytest.fixture(autouse=True)
def _no_determinism(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would hold for the whole process, and wants one thread."""
    monkeypatch.setattr(
        "hvd_elastic_keras.step.deterministic_step.enable_op_determinism", lambda: None
    )


@pytest.mark.parametrize("asks", [TrainingConfig, ElasticCallback])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("gives_default", [True, False])
def test_the_first_source_counts_also_with_what_is_the_default(
    name: str,
    *,
    asks: type[TrainingConfig | ElasticCallback],
    gives_default: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    default, other = OPTIONS[name].default, others(name)
    expected, overruled = (default, other) if gives_default else (other, default)
    for first, second in pairs(name):
        with monkeypatch.context() as patched:
            given = Given(name, tmp_path, patched)
            given.by(first, expected)
            given.by(second, overruled)
            assert given.counts(asks) == expected, f"{first} before {second}"


@pytest.mark.parametrize("asks", [TrainingConfig, ElasticCallback])
@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_that_nobody_gives_has_its_default(
    name: str,
    asks: type[TrainingConfig | ElasticCallback],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Given(name, tmp_path, monkeypatch).counts(asks) == OPTIONS[name].default


def test_each_option_has_a_flag_and_scripts_give_the_same_ones_in_both_ways() -> None:
    assert set(job_flags.FLAGS) == set(OPTIONS)
    of_config = {f.name: f.default for f in dataclasses.fields(TrainingConfig)}
    assert set(OF_SCRIPTS) == OPTIONS.keys() & of_config.keys()
    of_callback = inspect.signature(ElasticCallback).parameters
    for name in OF_SCRIPTS:
        assert of_callback[name].default is UNSET, name
        assert of_config[name] is UNSET, name
