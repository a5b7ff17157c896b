"""Seconds from a command to the first step, and until a replacement is ready.

All values are ratios to `python train.py` with plain `fit` of the same model, or to `import
tensorflow`. These take turns with this project's commands.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import rows
from absl import app, flags
from launches import JOB_DIR, QUIET, RUN, elastic, in_job_dir

from hvd_elastic_keras.common import files

_REPETITIONS = flags.DEFINE_integer("repetitions", 3, "Starts of each kind.", lower_bound=1)
SCRIPT = Path(__file__).resolve().parent / "start_up_script.py"
LIMIT_S = 300.0
READY = "a replacement beside a worker that trains, from its launch until it is ready"
OF_MODEL = f"{READY}, in a job of --model"
TWO = "the first step of two python train.py with plain fit, at once"


def run(*command: str, **variables: str) -> None:
    """Runs a command to its end.

    Raises:
      SystemExit: if the command fails.
    """
    found = subprocess.run(
        command,
        env={**os.environ, **QUIET, **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if found.returncode:
        raise SystemExit(f"{command} failed:\n{found.stdout[-2000:]}{found.stderr[-2000:]}")


def whole_s(*command: str) -> float:
    """Returns the seconds that a command takes."""
    began = time.monotonic()
    run(*command)
    return time.monotonic() - began


@dataclasses.dataclass(frozen=True)
class Start:
    """Seconds until the first step: by the clock, and of all processors together."""

    wall_s: float
    processor_s: float


def first_step(*command: str) -> Start:
    """Measures a command up to its first step."""
    with tempfile.TemporaryDirectory() as scratch:
        noted, job = Path(scratch, "first_step"), Path(scratch, "job")
        began = time.time()
        run(*in_job_dir(command, job), BENCH_FIRST_STEP=str(noted))
        found = json.loads(noted.read_text())
        return Start(found["at"] - began, found["processor_s"])


def first_steps_of_two(*command: str) -> Start:
    """Runs a command twice at once: two workers also share the processors of a machine."""
    with ThreadPoolExecutor() as pool:
        one, other = pool.map(lambda _: first_step(*command), range(2))
    return Start(max(one.wall_s, other.wall_s), one.processor_s + other.processor_s)


def ready_s(job: Path, worker: str) -> float:
    """Returns seconds from the launch of a worker until it is warm."""
    entries = map(json.loads, (job / files.EVENTS).read_text().splitlines())
    ready = (e for e in entries if e["event"] == "worker_ready" and e["worker_id"] == worker)
    return float(next(ready)["start_up_s"])


def replacement_s(*training: str) -> float:
    """Returns seconds from a replacement's launch until it is warm, while another worker trains.

    Args:
      training: the last arguments of the command.
    """
    with tempfile.TemporaryDirectory() as scratch:
        command = (*RUN, "--num_workers=2", JOB_DIR, *training)
        job = Path(scratch, "job")
        run(*in_job_dir(command, job), BENCH_FIRST_STEP=str(Path(scratch, "first_step")))
        return ready_s(job, "w2")


KINDS: dict[str, Callable[[], float | Start]] = {
    "import tensorflow": lambda: whole_s(sys.executable, "-c", "import tensorflow, keras"),
    "import hvd_elastic_keras": lambda: whole_s(sys.executable, "-c", "import hvd_elastic_keras"),
    "run --help": lambda: whole_s(*RUN, "--help"),
    "plain fit": lambda: first_step(sys.executable, str(SCRIPT), "plain"),
    TWO: lambda: first_steps_of_two(sys.executable, str(SCRIPT), "plain"),
    "with the callback, no launcher": lambda: first_step(sys.executable, str(SCRIPT), "elastic"),
    "1 worker": lambda: first_step(*elastic(SCRIPT, 1)),
    "2 workers": lambda: first_step(*elastic(SCRIPT, 2)),
    READY: lambda: replacement_s(str(SCRIPT), "replaced"),
    OF_MODEL: lambda: replacement_s(f"--model={SCRIPT}", "--epochs=1000"),
}
AGAINST = {
    "import hvd_elastic_keras": "import tensorflow",
    "run --help": "import tensorflow",
    "with the callback, no launcher": "plain fit",
    "1 worker": "plain fit",
    "2 workers": TWO,
    READY: "plain fit",
    OF_MODEL: "plain fit",
}

STEPS = {
    kind for kind in AGAINST if kind.startswith(("with the callback", "1 worker", "2 workers"))
}
NAMES = {"plain fit": "the first step of python train.py with plain fit"}


def measured() -> list[rows.Row]:
    """Measures all kinds, which take turns; returns the rows."""
    found: dict[str, list[float | Start]] = {kind: [] for kind in KINDS}
    for _ in range(_REPETITIONS.value):
        for kind, measure in KINDS.items():
            found[kind].append(measure())
    wall = {kind: statistics.median(map(wall_s, times)) for kind, times in found.items()}
    made = []
    for kind, against in AGAINST.items():
        what, name = f"command to first step, {kind}", NAMES.get(against, against)
        ratio = wall[kind] / wall[against]
        made.append(rows.Row(what=what if kind in STEPS else kind, against=name, ratio=ratio))
        if kind in STEPS:
            ratio = processor_s(found[kind]) / processor_s(found[against])
            made.append(rows.Row(what=f"{what}, time of processors", against=name, ratio=ratio))
    return made


def wall_s(time_or_start: float | Start) -> float:
    """Returns seconds by the clock."""
    return time_or_start.wall_s if isinstance(time_or_start, Start) else time_or_start


def processor_s(starts: Sequence[float | Start]) -> float:
    """Returns the median processor time."""
    return statistics.median(s.processor_s for s in starts if isinstance(s, Start))


def main(_: list[str]) -> None:
    """Prints the rows."""
    rows.show(measured())


if __name__ == "__main__":
    app.run(main)
