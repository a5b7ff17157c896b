"""Whether the loss curve stays the same when slots are revoked in the middle of a training.

A small convolutional network learns handwritten digits. Each job starts with the same number of
workers. When its first epoch has ended, slots are revoked, so that fewer workers are left for the
other epochs (`hvd_elastic_keras.ctl revoke --slots=K` sends the same request). The reference is a
job with one worker from the start.

The output has the largest differences from the reference over all steps, and the time that the
change took. The exit code is 1 if a difference is above what rounding explains. `steps.csv`,
`epochs.csv`, `summary.csv`, `curves-MODE.png` and `wall_time-MODE.png` are written to --output.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import convergence_plots
import psutil
import requests
from absl import app, flags
from convergence_runs import Difference, Run, difference, mistakes, read, write_csv

from model_zoo.digits import NUM_VALIDATION

HERE = Path(__file__).resolve().parent
STEP_LOG = "BENCH_STEP_LOG"
GLOBAL_BATCH_SIZE = 96
MICRO_BATCH_SIZE = 8
"""12 micro-batches: 5 workers compute 3+3+2+2+2 of them."""
LIMIT_S = 300.0
POLL_S = 0.002
USUAL, DETERMINISTIC = "usual", "deterministic"
LOSS_TOLERANCE = 1e-5
"""Workers add up the same numbers in another order. An addition in float32 rounds by up to 2^-24 =
6e-8 of its result. A loss is at most 2.6 here, and some dozen such errors add up. An example on the
edge between two classes may therefore change its class, so accuracies may differ by one example.
"""

_OUTPUT = flags.DEFINE_string("output", None, "Directory for data and plots.", required=True)
_EPOCHS = flags.DEFINE_integer("epochs", 15, "Epochs of each job.", lower_bound=2)
_WORKERS = flags.DEFINE_integer("workers", 6, "Workers before the revocation.", lower_bound=1)
_LEFT = flags.DEFINE_list("left", ["6", "5", "4", "3", "2", "1"], "Workers after it, one job each.")
_DETERMINISTIC = flags.DEFINE_bool(
    "deterministic",
    False,
    "Also train everything with --deterministic, where no difference is allowed at all.",
)
_QUICK = flags.DEFINE_bool(
    "quick", False, "Only 2 epochs, and from 3 workers to 2: to see that this program works."
)


# --- one job --------------------------------------------------------------------------------


@contextlib.contextmanager
def running(command: list[str], step_log: Path, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a job; at the end of the block, the job is ended with all of its processes."""
    with output.open("wb") as stream:
        process = subprocess.Popen(
            command,
            env={**os.environ, STEP_LOG: str(step_log), "PYTHONPATH": str(HERE.parents[1])},
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            children = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            for left in (*children, process):
                with contextlib.suppress(psutil.NoSuchProcess):
                    left.kill()


def wait(look: Callable[[], Any], process: subprocess.Popen[bytes], what: str) -> None:
    """Polls until `look` finds something."""
    deadline = time.monotonic() + LIMIT_S
    while not look():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"no {what}")
        time.sleep(POLL_S)


def revoke(job_dir: Path, slots: int) -> None:
    """Does what `ctl revoke --slots=SLOTS` does, without the start of a new process."""
    endpoint = json.loads((job_dir / "master.json").read_text())
    response = requests.post(
        f"http://{endpoint['address']}/v1/slots",
        json={"revoke": slots},
        headers={"Authorization": f"Bearer {endpoint['token']}"},
        timeout=10,
        proxies={"http": ""},
    )
    if not response.ok:
        raise RuntimeError(f"the slots were not revoked: {response.text}")


def first_epoch_ended(job_dir: Path) -> bool:
    """Returns whether the job has reported the end of an epoch."""
    with contextlib.suppress(FileNotFoundError):
        return '"epoch_end"' in (job_dir / "events.jsonl").read_text()
    return False


def train(mode: str, workers: int, left: int, epochs: int, scratch: Path) -> Run:
    """Runs one job from start to end."""
    scratch.mkdir()
    job_dir, step_log, output = scratch / "job", scratch / "steps.txt", scratch / "output.txt"
    command = [
        *(sys.executable, "-m", "hvd_elastic_keras.run"),
        *(f"--model={HERE / 'convergence_model.py'}", f"--job_dir={job_dir}"),
        *(f"--num_workers={workers}", f"--epochs={epochs}"),
        *(f"--global_batch_size={GLOBAL_BATCH_SIZE}", f"--micro_batch_size={MICRO_BATCH_SIZE}"),
        f"--deterministic={mode == DETERMINISTIC}",
    ]
    with running(command, step_log, output) as process:
        try:
            if left < workers:
                wait(lambda: first_epoch_ended(job_dir), process, "end of the first epoch")
                revoke(job_dir, workers - left)
            if process.wait(LIMIT_S):
                raise RuntimeError(f"the job failed with exit code {process.returncode}")
        except (RuntimeError, subprocess.TimeoutExpired, OSError) as error:
            raise SystemExit(f"{error}:\n{output.read_text()[-3000:]}") from error
    return read(mode, workers, left, job_dir, step_log)


# --- all jobs -------------------------------------------------------------------------------


def limits(mode: str) -> Difference:
    """Returns the largest differences that a run may have from its reference."""
    if mode == DETERMINISTIC:
        return Difference(0.0, 0.0, 0.0, 0.0)
    return Difference(
        loss=LOSS_TOLERANCE,
        accuracy=1 / GLOBAL_BATCH_SIZE,
        val_loss=LOSS_TOLERANCE,
        val_accuracy=1 / NUM_VALIDATION,
    )


def summary(run: Run, found: Difference) -> dict[str, Any]:
    """Returns one line of the table."""
    change = run.change
    before, after = run.step_s(run.workers), run.step_s(run.left)
    return {
        "mode": run.mode,
        "workers": run.name,
        "micro-batches": run.shares,
        **{f"{name} diff": value for name, value in dataclasses.asdict(found).items()},
        "examples/s before": GLOBAL_BATCH_SIZE / before if before else None,
        "examples/s after": GLOBAL_BATCH_SIZE / after if after and change else None,
        "revoked at s": change.time_s if change else None,
        "change s": change.took_s if change else None,
        "pause s": change.pause_s if change else None,
        "steps lost": change.steps_lost if change else None,
        "val_accuracy": run.epochs[-1].val_accuracy,
        "training s": run.seconds,
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the rows as text, in columns."""
    formats = {"examples": ".0f", "val": ".4f", "training": ".1f"}

    def cell(name: str, value: Any) -> str:
        starts = (f for start, f in formats.items() if name.startswith(start))
        kind = ".1e" if name.endswith(" diff") else next(starts, ".2f")
        if isinstance(value, float):
            return format(value, kind) if value or kind != ".1e" else "0"
        return "-" if value is None else str(value)

    cells = [list(rows[0]), *([cell(n, v) for n, v in row.items()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )


def train_all(mode: str, workers: int, left: Sequence[int], epochs: int) -> list[Run]:
    """Trains the reference, then one job for each number of workers left."""
    with tempfile.TemporaryDirectory(prefix="bench_convergence_") as directory:
        runs = []
        for start, rest in [(1, 1), *((workers, n) for n in left)]:
            runs.append(train(mode, start, rest, epochs, Path(directory, str(len(runs)))))
            print(f"{mode}: {runs[-1].name}: {runs[-1].seconds:.1f} s", flush=True)
    return runs


def plan() -> tuple[int, list[int], int]:
    """Returns the workers before and after the revocation, and the epochs."""
    if _QUICK.value:
        return 3, [2], 2
    workers = _WORKERS.value
    left = [int(n) if n.isdecimal() else 0 for n in _LEFT.value]
    if not left or not all(1 <= n <= workers for n in left):
        given = ",".join(_LEFT.value)
        raise app.UsageError(f"--left={given} was given, expected numbers from 1 to {workers}.")
    return workers, left, _EPOCHS.value


def main(_: list[str]) -> None:
    """Trains, compares, writes and prints."""
    workers, left, epochs = plan()
    output = Path(_OUTPUT.value)
    output.mkdir(parents=True, exist_ok=True)
    rows, wrong, all_runs = [], [], []
    for mode in (USUAL, DETERMINISTIC) if _DETERMINISTIC.value else (USUAL,):
        reference, *runs = train_all(mode, workers, left, epochs)
        for run in (reference, *runs):
            found = difference(run, reference)
            rows.append(summary(run, found))
            wrong += mistakes(run, found, limits(mode))
        all_runs += [reference, *runs]
        convergence_plots.curves(output / f"curves-{mode}.png", reference, runs, LOSS_TOLERANCE)
        convergence_plots.wall_time(output / f"wall_time-{mode}.png", reference, runs)
    write_csv(output / "steps.csv", all_runs, "steps")
    write_csv(output / "epochs.csv", all_runs, "epochs")
    with (output / "summary.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    print(table(rows))
    print("\n".join(f"FAILED: {text}" for text in wrong) or "all curves coincide")
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    app.run(main)
