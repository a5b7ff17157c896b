"""Breaks a job again and again, and checks that nothing of it shows at the end.

A job of some workers trains a convex model for a few thousand small steps. Meanwhile, `chaos`
kills, terminates, suspends and slows down its workers at random. With `--launcher_kills` it also
kills the launcher, which is then started again with the same command. With `--journal_kills` it
kills launchers too: each as soon as its journal has grown past a random length. These must hold at
the end:

- the weights equal the result of an undisturbed job of one worker, to 1e-5,
- every example was used exactly once in each epoch, by its ledgers (`ctl audit`),
- no process and no temporary file of the job is left,
- the launcher holds as many file descriptors and as much memory as in the beginning.

`--minutes` limits the time of all this. Exits with 0 if all of it holds, and with 1 if not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import psutil
from absl import app, flags

from hvd_elastic_keras.audit import report
from hvd_elastic_keras.chaos.plan import DRAWN, Fault, Plan, drawn
from hvd_elastic_keras.cli import control_job
from hvd_elastic_keras.common import messages
from hvd_elastic_keras.common.control import JobStatus, SlotsRequest
from hvd_elastic_keras.common.errors import ElasticError
from hvd_elastic_keras.settings import env

HERE = Path(__file__).resolve().parent
MODEL = HERE / "soak_model.py"
PACE = "SOAK_STEP_S"
TOLERANCE = 1e-5
POLL_S = 0.5
MOST_MORE_DESCRIPTORS = 4
"""Allowance for requests that are still being answered."""
MOST_MORE_MEGABYTES = 30
LONGEST_JOURNAL = 12_000
"""Bytes. A launcher begins with one or two lines of 2,000. A lost worker causes several lines."""
KILLED = -9

_STEPS = flags.DEFINE_integer("steps", 4000, "Of the job.", lower_bound=100)
_FAULTS = flags.DEFINE_integer("faults", 60, "Of all kinds.", lower_bound=1)
_LAUNCHER_KILLS = flags.DEFINE_integer(
    "launcher_kills", 0, "So many more faults: the launcher is killed.", lower_bound=0
)
_JOURNAL_KILLS = flags.DEFINE_integer(
    "journal_kills", 0, "And the launcher is killed at so many lengths of journals.", lower_bound=0
)
_MINUTES = flags.DEFINE_float("minutes", 20.0, "It ends then at the latest.", lower_bound=0.5)
_WORKERS = flags.DEFINE_integer("workers", 3, "That are kept up.", lower_bound=2)
_STEP_S = flags.DEFINE_float("step_s", 0.05, "Seconds that each step takes longer.")
_SEED = flags.DEFINE_integer("seed", 0, "The same seed draws the same faults.")


@dataclasses.dataclass(frozen=True)
class Held:
    """Resources that a process holds."""

    descriptors: int = 0
    megabytes: float = 0.0

    def __str__(self) -> str:
        return f"{self.descriptors} descriptors and {self.megabytes:.0f} MB"


@dataclasses.dataclass
class Launcher:
    """The launcher of the job, and the launchers that follow it."""

    job_dir: Path
    temporary: Path
    flags: list[str]
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0

    def start(self, pace_s: float) -> None:
        """Starts the job, or continues it."""
        self.temporary.mkdir(exist_ok=True)
        self.starts += 1
        with (self.job_dir.parent / f"{self.job_dir.name}.txt").open("ab") as output:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "hvd_elastic_keras.run", f"--model={MODEL}"),
                    *(f"--job_dir={self.job_dir}", f"--steps={_STEPS.value}", "--epochs=100000"),
                    *("--global_batch_size=64", "--micro_batch_size=8", "--max_restarts=100000"),
                    *self.flags,
                ],
                env={
                    **os.environ,
                    "TF_CPP_MIN_LOG_LEVEL": "3",
                    "TMPDIR": str(self.temporary),
                    PACE: str(pace_s),
                },
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while the process runs."""
        return self.process.poll() if self.process else None

    def held(self) -> Held:
        """Returns the resources of the process; nothing if it has just ended."""
        with contextlib.suppress(psutil.NoSuchProcess):
            if self.process:
                process = psutil.Process(self.process.pid)
                return Held(process.num_fds(), process.memory_info().rss / 2**20)
        return Held()


def status_of(job_dir: Path) -> JobStatus | None:
    """Returns the job's status; None if there is no answer now."""
    try:
        return control_job.read_status(job_dir)
    except ElasticError:
        return None


def keep_up(job_dir: Path, status: JobStatus) -> None:
    """Grants the slots of workers that have left again."""
    missing = _WORKERS.value - status.target_workers
    if missing > 0 and status.phase in ("running", "changing", "waiting"):
        with contextlib.suppress(ElasticError):  # the launcher has just been killed
            control_job.change_slots(job_dir, SlotsRequest(grant=missing))


def members(status: JobStatus | None) -> int:
    """Returns the number of workers with a rank."""
    return sum(worker.rank is not None for worker in status.workers) if status else 0


def plan(path: Path) -> Path:
    """Writes a plan of random faults of workers, and faults of the launcher between them."""
    every_s = _STEPS.value * _STEP_S.value / (_FAULTS.value + 1)
    faults = drawn(_SEED.value, _FAULTS.value, every_s, DRAWN).faults
    apart_s = _STEPS.value * _STEP_S.value / (_LAUNCHER_KILLS.value + 1)
    kills = tuple(
        Fault(kind="kill", target="launcher", after_s=apart_s * number)
        for number in range(1, _LAUNCHER_KILLS.value + 1)
    )
    draw = random.Random(_SEED.value)
    lengths = [draw.randrange(LONGEST_JOURNAL) for _ in range(_JOURNAL_KILLS.value)]
    at_lengths = tuple(Fault(kind="kill", target="launcher", journal_bytes=n) for n in lengths)
    path.write_bytes(messages.encode(Plan(faults=faults + kills + at_lengths)))
    return path


def start_chaos(directory: Path, job_dir: Path, seconds_left: float) -> subprocess.Popen[bytes]:
    """Starts to break the job."""
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "hvd_elastic_keras.chaos", f"--job_dir={job_dir}"),
            *(f"--plan={plan(directory / 'plan.json')}", f"--timeout_s={seconds_left:.0f}"),
            f"--report={directory / 'report.json'}",
        ]
    )


def run_disturbed(directory: Path, deadline: float) -> tuple[Launcher, list[str]]:
    """Runs the job with faults to its end; returns the launcher, and what went wrong."""
    job = Launcher(
        directory / "job", directory / "tmp", [f"--num_workers={_WORKERS.value}", "--audit"]
    )
    job.start(_STEP_S.value)
    chaos: subprocess.Popen[bytes] | None = None
    first = last = Held()
    while time.monotonic() < deadline:
        time.sleep(POLL_S)
        if job.exit_code == KILLED:
            job.start(_STEP_S.value)
            first = last = Held()
        elif job.exit_code is not None:
            break
        status = status_of(job.job_dir)
        if status is None:
            continue
        keep_up(job.job_dir, status)
        if members(status) == _WORKERS.value and status.phase == "running":
            last = job.held()
            first = first if first.descriptors else last
        if chaos is None and members(status) == _WORKERS.value:
            chaos = start_chaos(directory, job.job_dir, deadline - time.monotonic())
    if chaos:
        chaos.wait(90)
    wrong = []
    if job.exit_code is None and job.process:
        job.process.kill()
        wrong.append(f"the job had not ended after {_MINUTES.value:g} minutes (--minutes)")
    elif job.exit_code:
        wrong.append(f"the job ended with exit code {job.exit_code}")
    told = f"the launcher held {first} in the beginning, {last} at the end"
    print(told, flush=True)
    if (
        last.descriptors > first.descriptors + MOST_MORE_DESCRIPTORS
        or last.megabytes > first.megabytes + MOST_MORE_MEGABYTES
    ):
        wrong.append(told)
    return job, wrong


def leftovers(job: Launcher) -> Iterator[str]:
    """Yields processes and files of the job that should be gone."""
    for process in psutil.process_iter():
        try:
            if process.environ().get(env.JOB_DIR) == str(job.job_dir):
                yield f"process {process.pid} is left"
                process.kill()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    for path in (*job.temporary.iterdir(), *job.job_dir.rglob(".*")):
        yield f"{path} is left"


def weights(job_dir: Path) -> dict[str, Any]:
    """Returns the variables of the final model, by name."""
    found: dict[str, Any] = {}

    def note(name: str, node: object) -> None:
        if isinstance(node, h5py.Dataset):
            found[name] = np.asarray(node)

    with zipfile.ZipFile(job_dir / "model.keras") as archive:
        archive.extract("model.weights.h5", job_dir.parent)
    with h5py.File(job_dir.parent / "model.weights.h5") as file:
        file.visititems(note)
    return found


def compared(disturbed: Path, undisturbed: Path) -> Iterator[str]:
    """Yields the differences between the weights."""
    found, expected = weights(disturbed), weights(undisturbed)
    largest = max(float(np.abs(found[name] - expected[name]).max()) for name in expected)
    print(f"largest difference of any weight: {largest:.1e}", flush=True)
    if not largest <= TOLERANCE:
        yield f"weights differ by {largest:.1e}, more than {TOLERANCE:g}"


def judged(directory: Path, job: Launcher) -> Iterator[str]:
    """Yields what is wrong with the job after its end."""
    found = list(report.findings(job.job_dir))
    print(f"{sum(f.good for f in found)} epochs in which every example was used exactly once")
    yield from (finding.text for finding in found if not finding.good)
    alone = Launcher(directory / "alone", directory / "tmp-alone", ["--num_workers=1"])
    alone.start(0.0)
    if alone.process and alone.process.wait(600):
        yield "the undisturbed job has failed"
    else:
        yield from compared(job.job_dir, alone.job_dir)


def not_fired(path: Path) -> Iterator[str]:
    """Yields the faults that have not happened."""
    outcomes = json.loads(path.read_text())["outcomes"] if path.exists() else []
    lacking = [outcome for outcome in outcomes if outcome["fired"] is None]
    if lacking or not outcomes:
        yield f"{len(lacking)} of {len(outcomes)} faults have not happened: use more --steps"


def main(_: list[str]) -> None:
    """Runs the soak, prints the result, and sets the exit code."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch).resolve()
        job, wrong = run_disturbed(directory, began + 60 * _MINUTES.value)
        wrong += [*leftovers(job), *not_fired(directory / "report.json")]
        control_job.explain(job.job_dir)
        if not job.exit_code:
            wrong += judged(directory, job)
        else:
            print((directory / "job.txt").read_text()[-3000:])
    for line in wrong:
        print(f"WRONG: {line}", flush=True)
    print(f"{'failed' if wrong else 'all is well'} after {time.monotonic() - began:.0f} s")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    app.run(main)
