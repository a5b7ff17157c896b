"""The commands of README and docs, typed as printed; long ones with `--dry_run`."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.documentation import PAGES, ROOT, blocks, example
from tests.harness.job import Job

RUN = "python -m hvd_elastic_keras.run"
FILES = {
    "script.py": ("README.md", "This is `script.py`, a script that knows nothing of this package:"),
    "wine.py": ("docs/model_module.md", "This is `wine.py`:"),
    "iris.py": ("docs/model_module.md", "`iris.py`:"),
    "configs/default.py": ("docs/model_module.md", "`configs/default.py` beside it:"),
    "digits.py": ("docs/coming_from.md", "After, `digits.py`:"),
}
"""The files that the commands name: the page that shows each, and the words before it."""
JOB_PAGE, SLOTS_PAGE = ROOT / "docs" / "failures.md", ROOT / "docs" / "slots.md"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Returns a directory with the files that the pages show."""
    for name, place in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(example(*place))
    token = tmp_path / "job.token"
    token.write_text("a" * 64)
    token.chmod(0o600)
    return tmp_path


def call(directory: Path, command: str, *more: str) -> subprocess.CompletedProcess[str]:
    """Runs `python …` in the directory, with this Python."""
    words = shlex.split(command, comments=True)
    assert words[0] == "python"
    return subprocess.run(
        [sys.executable, *words[1:3], *more, *words[3:]],
        capture_output=True,
        text=True,
        cwd=directory,
        check=False,
        timeout=250,
    )


def commands(page: Path, start: str) -> list[tuple[str, str]]:
    """Returns the unmarked commands of a page that begin so, each with its whole block."""
    found = [b for b in blocks(page) if b.language == "console" and not b.why_not_run]
    return [(c, block.text) for block in found for c in block.commands if c.startswith(start)]


def started(page: Path) -> list[tuple[str, str]]:
    """Returns the commands of a page that start a new job."""
    return [(c, shown) for c, shown in commands(page, RUN) if "--resume" not in c]


@pytest.mark.slow(but=("docs/reference.md",))
@pytest.mark.parametrize(
    "page", [p for p in PAGES if started(p)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_the_jobs_of_a_page_would_start(page: Path, directory: Path) -> None:
    for command, shown in started(page):
        end = call(directory, command, "--dry_run")
        expected = 2 if "\nerror: " in shown else 0
        assert end.returncode == expected, f"{command}\n{end.stdout}{end.stderr}"


def test_the_script_of_the_readme_trains_alone_and_on_workers_to_the_same_loss(
    directory: Path,
) -> None:
    losses = []
    for command, _ in commands(ROOT / "README.md", "python "):
        end = call(directory, command)
        assert end.returncode == 0, end.stdout + end.stderr
        losses += [float(loss) for loss in re.findall(r"last loss (\S+)", end.stdout)]
        assert (directory / "best.keras").exists()
    assert len(losses) == 2, "alone, and once for all workers"
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.slow(but=("wine",))
@pytest.mark.parametrize("module", ["wine", "iris"])
def test_the_model_modules_of_the_page_train(module: str, directory: Path) -> None:
    page = ROOT / "docs" / "model_module.md"
    [(command, shown)] = [each for each in started(page) if f"--model={module}.py" in each[0]]
    end = call(directory, command)
    assert end.returncode == 0, end.stdout + end.stderr
    # Sizes and lengths must match the page; times and directories need not.
    told = re.findall(rf"^\[elastic\] (?:{module}|global|finished after \d+ steps).*", shown, re.M)
    assert len(told) == 3
    for line in told:
        assert line.partition("; results")[0] in end.stdout


@pytest.mark.slow
def test_the_session_with_a_kill_and_ctl_goes_as_the_page_says(tmp_path: Path) -> None:
    [(command, _)] = started(JOB_PAGE)
    flags = [flag for flag in shlex.split(command)[3:] if not flag.startswith("--job_dir")]
    asked, slots = (
        [c.split("jobs/demo ")[1] for c, _ in commands(page, "python -m hvd_elastic_keras.ctl")]
        for page in (JOB_PAGE, SLOTS_PAGE)
    )
    assert asked == ["status", "explain", "add 1", "remove w0", "remove 1"]
    with Job(tmp_path, command=tuple(flags)) as job:
        job.wait_for_round(3)
        status = job.ctl("status")
        killed = re.search(r"^w1 .*?localhost +(\d+)", status, re.MULTILINE)
        assert killed, status
        os.kill(int(killed[1]), signal.SIGKILL)
        after = job.wait_for_round(2)["round"]
        after = job.wait_for_round(3, after)["round"]
        assert "w1 was killed by SIGKILL" in job.ctl("explain")
        assert job.ctl("add", "1") == "1 more is starting\n"
        after = job.wait_for_round(4, after)["round"]
        assert job.ctl("remove", "w0") == "w0 will leave after the current step\n"
        after = job.wait_for_round(3, after)["round"]
        assert job.ctl("remove", "1") == "w4 will leave after the current step\n"
        after = job.wait_for_round(2, after)["round"]
        for words, size in zip(slots, (1, 2), strict=True):
            assert job.ctl(*words.split()).split()[1] in ("will", "is")
            after = job.wait_for_round(size, after)["round"]
        assert not any(event["steps_lost"] for event in job.events("round_running"))
        job.process.terminate()
        job.finish(exit_code=128 + signal.SIGTERM)
        command = "python -m hvd_elastic_keras.run --resume --job_dir="
        assert f"[elastic] to continue: {command}" in job.output
