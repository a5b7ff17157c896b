"""Flags that are made of the options of configurations, and their rows in the reference."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Annotated

import pytest
from absl import flags
from absl.testing import flagsaver

from hvd_elastic_keras.cli.checks import machine
from hvd_elastic_keras.cli.flags import job_flags, settings
from hvd_elastic_keras.settings.job_config import JobConfig
from hvd_elastic_keras.settings.option import Option, definitions
from hvd_elastic_keras.settings.options import RunOptions
from hvd_elastic_keras.settings.training_config import TrainingConfig
from tests.harness.job import REPOSITORY

REFERENCE = (REPOSITORY / "docs" / "reference.md").read_text().splitlines()
CONFIGURATIONS = ((RunOptions, True), (TrainingConfig, True), (JobConfig, False))


def reference_rows(config: type, *, may_be_unset: bool) -> list[str]:
    """Returns the rows of `docs/reference.md` that follow from the definitions of options."""
    defaults, rows = config(), []
    for name, (_, option) in definitions(config).items():
        value = getattr(defaults, name)
        default = job_flags.default_in_words(option, value, may_be_unset=may_be_unset)
        choices = "".join(f"`{choice}` " for choice in option.choices)
        meaning = f"{flags_marked(option.help)} {option.more}".rstrip()
        rows.append(f"| `--{name}` {choices}| {flags_marked(default)} | {meaning} |")
    return rows


def flags_marked(text: str) -> str:
    """Marks the flags in a text as code."""
    return re.sub(r"(?<![`\w])(--\w+(?:[=/]\w+)?)", r"`\1`", text)


@pytest.mark.parametrize(("config", "may_be_unset"), CONFIGURATIONS)
def test_the_reference_has_the_row_that_follows_from_the_definition(
    config: type, may_be_unset: bool
) -> None:
    expected = reference_rows(config, may_be_unset=may_be_unset)
    missing = [row for row in expected if row not in REFERENCE]
    assert not missing, "write these rows to docs/reference.md:\n" + "\n".join(missing)


@pytest.mark.parametrize(("config", "may_be_unset"), CONFIGURATIONS)
def test_each_flag_has_help_choices_and_bounds_of_its_definition(
    config: type, may_be_unset: bool
) -> None:
    for name, (_, option) in definitions(config).items():
        flag = flags.FLAGS[name]
        assert option.help in flag.help
        assert ("Default:" in flag.help) == (may_be_unset or bool(option.default))
        assert tuple(getattr(flag.parser, "enum_values", None) or ()) == option.choices
        assert getattr(flag.parser, "lower_bound", None) == option.least


@dataclasses.dataclass(frozen=True)
class NewConfig:
    """A configuration that somebody adds."""

    speed_of_test: Annotated[float, Option("How fast.", least=0.5)] = 2.0
    colour_of_test: Annotated[str, Option("Which one.", choices=("red", "blue"))] = "red"
    is_test: Annotated[bool, Option("Whether; see --job_dir/ledger.")] = True
    beside: int = 3


@pytest.fixture
def made() -> Iterator[dict[str, job_flags.Flag]]:
    """The flags of `NewConfig`."""
    found = job_flags.defined(NewConfig, may_be_unset=False)
    with flagsaver.flagsaver():
        settings.parse_flags(["run"])
        yield found
    for name in found:
        delattr(flags.FLAGS, name)


def test_an_option_is_added_by_its_definition_alone(made: dict[str, job_flags.Flag]) -> None:
    assert {name: flag.value for name, flag in made.items()} == {
        "speed_of_test": 2.0,
        "colour_of_test": "red",
        "is_test": True,
    }
    settings.parse_flags(["run", "--speed_of_test=3", "--nois_test"])
    assert (made["speed_of_test"].value, made["is_test"].value) == (3.0, False)
    with pytest.raises(flags.IllegalFlagValueError, match=r"0\.1"):
        flags.FLAGS["speed_of_test"].parse("0.1")
    assert reference_rows(NewConfig, may_be_unset=False) == [
        "| `--speed_of_test` | 2 | How fast. |",
        "| `--colour_of_test` `red` `blue` | red | Which one. |",
        "| `--is_test` | on | Whether; see `--job_dir/ledger`. |",
    ]


@pytest.mark.parametrize(
    ("words", "most"),
    [([], 16), (["--num_workers=20"], 40), (["--num_workers=20", "--max_workers=21"], 21)],
)
def test_the_most_workers_follow_their_number_unless_given(words: list[str], most: int) -> None:
    with flagsaver.flagsaver():
        settings.parse_flags(["run", *words])
        assert job_flags.job_config().max_workers == most


@pytest.mark.parametrize(
    ("gpus", "processors", "gib", "workers"),
    [
        (0, 8, 64, 8),
        (None, 8, 64, 8),  # only TensorFlow can count GPUs of other makers
        (0, 8, 3, 3),
        (0, 8, 0, 1),
        (4, 64, 512, 4),
    ],
)
def test_auto_starts_a_worker_for_each_gpu_or_each_processor_that_has_memory(
    gpus: int | None, processors: int, gib: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "gpus_here", lambda: gpus)
    monkeypatch.setattr(machine, "processors", lambda: processors)
    monkeypatch.setattr(machine, "available_bytes", lambda: gib * 2**30)
    with flagsaver.flagsaver():
        settings.parse_flags(["run", "--num_workers=auto"])
        assert job_flags.job_config().num_workers == workers


@pytest.mark.parametrize(("gpus", "most"), [(0, 200), (80, 160), (4, 16)])
def test_auto_has_room_for_twice_as_many_as_the_host(
    gpus: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "gpus_here", lambda: gpus)
    monkeypatch.setattr(machine, "processors", lambda: 100)
    monkeypatch.setattr(machine, "available_bytes", lambda: 4 * machine.WORKER_BYTES)
    with flagsaver.flagsaver():
        settings.parse_flags(["run", "--num_workers=auto"])
        assert job_flags.job_config().max_workers == most


@pytest.mark.parametrize(
    ("gpus", "words", "workers", "each"),
    [
        (4, [], 4, 1),
        (4, ["--gpus_per_worker=2"], 2, 2),
        (5, ["--gpus_per_worker=2"], 2, 2),
        (1, ["--gpus_per_worker=2"], 1, 2),  # refused later, with the number of GPUs
        (4, ["--gpus_per_worker=0"], 4, 0),
        (4, ["--max_workers=3"], 3, 1),
        (1, ["--min_workers=2"], 2, 1),
    ],
)
def test_auto_gives_each_worker_its_gpus(
    gpus: int, words: list[str], workers: int, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "gpus_here", lambda: gpus)
    with flagsaver.flagsaver():
        settings.parse_flags(["run", "--num_workers=auto", *words])
        assert job_flags.job_config().num_workers == workers
        options = job_flags.given_options({}, {}).with_script()
        assert options.gpus_per_worker == each


def test_a_number_leaves_the_gpus_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpus_here", lambda: 4)
    with flagsaver.flagsaver():
        settings.parse_flags(["run", "--num_workers=4"])
        assert job_flags.given_options({}, {}).with_script().gpus_per_worker == 0
