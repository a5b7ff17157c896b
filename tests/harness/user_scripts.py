"""Runs scripts that people wrote without this package, plainly and as jobs, and compares them.

    python -m tests.harness.user_scripts --folder=/tmp/scripts images/digits_convnet.py habits

The scripts are in `tests/user_scripts`. Each prints its results. `plain` runs one as a single
process with the random numbers of a job's seed, `job` with several workers. A script must print the
same numbers both times, up to rounding. Without names, the command runs all scripts, with 1 worker,
with 3, and with 3 of which one is killed: rank 1, or rank 0.
"""

from __future__ import annotations

import argparse
import atexit
import dataclasses
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tests.harness.job import REPOSITORY, ColdJob
from tests.user_scripts.make_files import make_files

SCRIPTS = REPOSITORY / "tests" / "user_scripts"
SEED = 7
LIMIT_S = 200.0
TOLERANCE = 5e-3
"""Relative, and beside it absolute. Some scripts magnify rounding; in double precision, those agree
to 1e-9. Other data, orders or random numbers differ by more."""
PLAIN = """
import runpy, sys
sys.stderr = sys.stdout
from hvd_elastic_keras.api import job_seed
from hvd_elastic_keras.settings.job_options import JobSeed
job_seed.install(JobSeed({seed}))
sys.argv = [{script!r}]
sys.path[0] = {folder!r}
runpy.run_path({script!r}, run_name="__main__")
"""
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}
NOT_COMPARED = re.compile(
    # Progress of Keras; the launcher has its own.
    r"^\s*Epoch \d+/\d+|^\s*\d+/(\d+|Unknown)\b|━━|^\[elastic\]|^epoch \d+"
    # Times, and messages that are no output of the script.
    r"|seconds|elapsed|took|\bms\b|\d s\b|^\d{4}-\d\d-\d\d|Warning|^WARNING:|^[WIE]\d{4} "
)
NUMBER = re.compile(r"(?<![\w.])-?(?:\d+\.\d*(?:e[-+]?\d+)?|\d+e[-+]?\d+|\d+|nan|inf)(?![\w])")


def names() -> list[str]:
    """Returns the scripts, relative to their folder."""
    found = (p.relative_to(SCRIPTS).as_posix() for p in SCRIPTS.glob("*/*.py"))
    return sorted(name for name in found if not name.endswith("__init__.py"))


def environment() -> dict[str, str]:
    """Returns the environment of a script that runs plainly."""
    path = f"{REPOSITORY}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return {**os.environ, "PYTHONHASHSEED": str(SEED), "PYTHONPATH": path, **QUIET}


@functools.cache
def _files() -> Path:
    """Returns a folder with the files that the scripts read. They are made once: it takes 4 s."""
    directory = tempfile.TemporaryDirectory(prefix="hvd-test-files-")
    atexit.register(directory.cleanup)
    folder = Path(directory.name, "files")
    make_files(folder)
    return folder


def in_folder(folder: Path, name: str) -> str:
    """Makes a folder with the files that the scripts read, and a copy of one; returns its name."""
    shutil.copytree(_files(), folder)
    script = folder / Path(name).name
    script.write_bytes((SCRIPTS / name).read_bytes())
    return script.name


def plain(folder: Path, name: str) -> list[str]:
    """Returns the lines that a script prints as a single process without this package."""
    script = in_folder(folder, name)
    program = PLAIN.format(seed=SEED, script=script, folder=str(folder))
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise AssertionError(
            f"{name} fails without this package: {last_words(done.stdout + done.stderr)}"
        )
    return done.stdout.splitlines()


class ScriptJob(ColdJob):
    """A job of an unchanged script, which runs in a folder of its own."""

    limit_s = LIMIT_S

    def __init__(self, directory: Path, name: str, workers: int, *flags: str) -> None:
        script = in_folder(directory / "here", name)
        self.here = directory / "here"
        # The whole batch, as in plain Keras: the default normalises over micro-batches.
        command = (f"--num_workers={workers}", f"--seed={SEED}", script)
        super().__init__(directory, *flags, command=command)

    def start_launcher(self, *more_flags: str) -> None:
        """Runs the command in the script's folder."""
        before = Path.cwd()
        os.chdir(self.here)
        try:
            super().start_launcher(*more_flags)
        finally:
            os.chdir(before)

    def environment(self) -> dict[str, str]:
        """Returns the environment of the launcher, which finds this package elsewhere."""
        return {**super().environment(), "PYTHONPATH": environment()["PYTHONPATH"]}

    def printed(self) -> list[str]:
        """Returns the lines of the script that the launcher has shown."""
        marked = re.compile(r"^\[w\d+\] ?")
        lines = (line for line in self.output.splitlines() if marked.match(line))
        return [marked.sub("", line) for line in lines]


class WarmScriptJob(ScriptJob):
    """The same, with the imports of all jobs: see `Job`."""

    imports_anew = False


def job(
    directory: Path, name: str, workers: int, *, killed: str = "", kind: type[ScriptJob] = ScriptJob
) -> ScriptJob:
    """Runs a script as a job to its end, and returns the job.

    Args:
      killed: the worker that is killed when the first round has begun.
    """
    directory.mkdir(parents=True)
    with kind(directory, name, workers) as running:
        if killed:
            running.wait_for("round_running")
            running.signal(killed, signal.SIGKILL)
        code = running.process.wait(LIMIT_S)
        if code:
            raise AssertionError(f"exit code {code}: {last_words(running.output)}")
        running.finish()
    return running


def last_words(output: str) -> str:
    """Returns the last lines of an output without TensorFlow's."""
    noise = re.compile(r"^(\[w\d\] )?([IWE]\d{4} |WARNING: All log|To enable the follow)|^\s*$")
    return "\n".join([line for line in output.splitlines() if not noise.match(line)][-12:])


def lines_with_numbers(lines: list[str]) -> Iterator[tuple[str, list[float]]]:
    """Yields the lines to compare with their numbers."""
    for line in lines:
        numbers = [float(text) for text in NUMBER.findall(line)]
        if numbers and not NOT_COMPARED.search(line):
            yield line, numbers


def difference(wanted: list[str], found: list[str], *, last: bool = False) -> str:
    """Returns the first line of `wanted` that `found` lacks or has with other numbers; or "".

    Args:
      last: whether lines may be missing, because another worker's output is shown from some moment
        on: then only the last line counts.
    """
    mine, theirs = list(lines_with_numbers(wanted)), list(lines_with_numbers(found))
    if last:
        mine, theirs = mine[-1:], theirs[-1:]
    for number, (line, numbers) in enumerate(mine):
        if number >= len(theirs):
            return f"missing: {line}"
        other, others = theirs[number]
        if len(others) != len(numbers) or not _near(numbers, others):
            return f"{other!r}, expected {line!r}"
    return f"more than expected: {theirs[len(mine)][0]!r}" if len(theirs) > len(mine) else ""


def _near(some: list[float], others: list[float]) -> bool:
    """Whether the numbers of a line agree up to rounding, which also moves counts a little."""
    scale = 1 + max(map(abs, some)) if all(map(float.is_integer, some)) else 1.0
    return bool(np.allclose(some, others, TOLERANCE, TOLERANCE * scale, equal_nan=True))


@dataclasses.dataclass(frozen=True)
class Way:
    """A way to run a script as a job."""

    name: str
    workers: int
    killed: str = ""


WAYS = (Way("1", 1), Way("3", 3), Way("kill", 3, killed="w1"), Way("kill0", 3, killed="w0"))


def main() -> None:
    """Runs scripts in all ways and prints a line for each; see the module."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("names", nargs="*", help="scripts or folders of tests/user_scripts")
    parser.add_argument("--folder", type=Path, required=True, help="a new folder for everything")
    parser.add_argument("--ways", default="1,3,kill,kill0")
    options = parser.parse_args()
    chosen = [n for n in names() if not options.names or n.startswith(tuple(options.names))]
    ways = [way for way in WAYS if way.name in options.ways.split(",")]
    results = [_tried(name, options.folder, ways) for name in chosen]
    print(f"{sum(results)} of {len(results)} scripts pass", flush=True)
    sys.exit(not all(results))


def _tried(name: str, folder: Path, ways: Sequence[Way]) -> bool:
    """Runs a script in all ways, prints a line for each, and returns whether all are well.

    A script whose numbers nobody can have twice, because it draws random numbers in parallel calls,
    is compared with its job of one worker.
    """
    folder = folder / Path(name).with_suffix("")
    good, wanted, of = True, plain(folder / "plain", name), "plainly"
    for way in ways:
        begun = time.monotonic()
        try:
            found = job(folder / way.name, name, way.workers, killed=way.killed).printed()
            text = difference(wanted, found, last=way.killed == "w0")
        except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
            found, text = [], f"FAILS {str(error)[-2500:]}"
        seconds = f"{time.monotonic() - begun:.1f} s"
        if text and found and way.workers == 1:
            print(f"{name} [{way.name}] {seconds}: other numbers: {text}", flush=True)
            wanted, of = found, "with one worker"
            continue
        good = good and not text
        print(f"{name} [{way.name}] {seconds}: {text or f'as {of}'}", flush=True)
    return good


if __name__ == "__main__":
    main()
