"""Every command that a page shows is one that the programs take, and is run by a test or marked."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from unittest import mock

import pytest
from absl import flags
from absl.testing import flagsaver

import hvd_elastic_keras.run  # noqa: F401 - defines the flags
from hvd_elastic_keras import ctl, doctor, report
from hvd_elastic_keras.chaos import __main__ as chaos
from hvd_elastic_keras.cli.flags import find_model, settings
from hvd_elastic_keras.cli.flags.arguments import with_own_names
from tests.harness.documentation import PAGES, ROOT, Block, blocks, example

PACKAGE = "python -m hvd_elastic_keras."
PARSERS = {
    "ctl": ctl.parser,
    "chaos": chaos.parser,
    "report": report.parser,
    "doctor": doctor.parser,
}
TESTED = {
    "python script.py": "tests/integration/test_pages_as_they_are.py",
    "python docs/examples/tuning.py": "tests/integration/test_tuning.py",
    "kill -9": "tests/integration/test_pages_as_they_are.py",
    "curl": "tests/integration/test_slots_of_a_job.py",
    "openssl rand": "tests/unit/cli/test_token_file.py",
    "tensorboard --logdir": "tests/integration/test_dashboard.py",
}
"""Commands of other programs by their beginning, and the test that does what they are for."""


def typed(page: Path) -> list[tuple[Block, str]]:
    """The commands of the page's console blocks."""
    found = [block for block in blocks(page) if block.language == "console"]
    return [(block, command) for block in found for command in block.commands]


def of_package(page: Path) -> list[str]:
    """Commands of this package: those of console blocks, and those in the text."""
    in_text = re.findall(rf"`({re.escape(PACKAGE)}\w+ [^`]+)`", page.read_text())
    commands = [command for _, command in typed(page)] + in_text
    commands = [re.sub(r"^scripts/run\b", f"{PACKAGE}run", command) for command in commands]
    return [c[c.index(PACKAGE) :] for c in commands if PACKAGE in c]


def words_of(command: str) -> tuple[str, list[str]]:
    """The program's name and its arguments, without what the shell takes for itself."""
    words = shlex.split(command.removeprefix(PACKAGE), comments=True)
    shell = next((i for i, word in enumerate(words) if word in ("<", ">", "&", "|")), len(words))
    return words[0], words[1:shell]


@pytest.fixture
def documented_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current directory has the model modules that pages call, with their configurations."""
    monkeypatch.chdir(tmp_path)
    for name in ("my_model.py", "wine.py", "iris.py", "digits.py"):
        Path(name).touch()
    Path("configs").mkdir()
    iris = example("docs/model_module.md", "`configs/default.py` beside it:")
    Path("configs", "default.py").write_text(iris)


def parse(command: str) -> None:
    """Lets the program's own parser read a command; it ends with SystemExit if that is wrong."""
    program, given = words_of(command)
    if program == "run":
        flags.FLAGS.set_gnu_getopt(False)  # as `run` does: what follows a script is its own
        given = with_own_names(given)
        words = find_model.with_config_path(["run", *given])
        with flagsaver.flagsaver(), mock.patch.object(sys, "argv", words):  # read for --config.NAME
            settings.parse_flags(words)
    else:
        PARSERS[program]().parse_args(given)


@pytest.mark.usefixtures("documented_models")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_programs_take_the_commands_of_a_page(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in of_package(page):
        try:
            parse(command)
        except SystemExit:
            # --help ends with another code once some test has defined the flags of absl's `app`.
            if "--help" not in words_of(command)[1]:
                pytest.fail(f"{command}: {capsys.readouterr().err}")


@pytest.mark.usefixtures("documented_models")
def test_a_flag_that_does_not_exist_is_noticed() -> None:
    for wrong in ("run --workers=3", "ctl --job_dir=a grow 1", "run --model=iris.py --config.x=1"):
        with pytest.raises(SystemExit):
            parse(PACKAGE + wrong)


BENCHMARKS = ROOT / "scripts" / "benchmarks"


def scripts_and_flags(command: str) -> tuple[Path, list[str]]:
    words = shlex.split(command, comments=True)
    assert words[0] != "scripts/bench" or (BENCHMARKS / f"{words[1]}.py").is_file(), command
    return ROOT / words[0], [word.partition("=")[0] for word in words[1:] if word.startswith("-")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_scripts_of_a_page_are_there_and_know_their_flags(page: Path) -> None:
    commands = [c for _, c in typed(page) if c.startswith("scripts/")]
    for command in commands:
        script, given = scripts_and_flags(command)
        assert script.is_file(), command
        if script.name not in ("run", "test"):  # these hand their flags on
            parts = [script, *BENCHMARKS.glob("*.py")]
            text = "".join(part.read_text() for part in parts)
            assert all(re.search(f'"(--)?{flag[2:]}"', text) for flag in given), command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_lets_you_type_is_run_by_a_test_or_marked(page: Path) -> None:
    for block, command in typed(page):
        ours = command.startswith((PACKAGE, "scripts/"))
        tested = next((test for start, test in TESTED.items() if command.startswith(start)), None)
        where = f"{block.page}:{block.line} `{command}`"
        hint = "expected a test of it, or <!-- not run by a test: WHY --> before the block"
        assert block.why_not_run or ours or tested, f"{where}: {hint}"
        assert tested is None or (ROOT / tested).is_file(), f"{where}: there is no {tested}"


def test_each_mark_stands_before_a_console_block() -> None:
    for page in PAGES:
        marked = [block for block in blocks(page) if block.why_not_run]
        assert all(block.language == "console" for block in marked), page
        comments = re.findall(r"^ *<!-- not run by a test:", page.read_text(), re.MULTILINE)
        assert len(marked) == len(comments), page
