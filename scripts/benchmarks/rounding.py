"""How far rounding takes the weights of `digits_cnn` apart: in one step, and to the end.

One job of three workers is disturbed. A worker and, later, rank 0 are killed, and replacements
join. The job is stopped, and goes on from its checkpoint. One process then takes each of its steps
again, from the state that the job had before it. This is the first table.

The second table compares all kinds of trainings with one process, step by step.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags

from tests.harness import recorded_steps

HERE = Path(__file__).resolve().parent
MODEL = HERE / "rounding_model.py"
LIMIT_S = 600.0
PACE_S = 0.03
ONE_THREAD, TWO_THREADS = ({"TF_NUM_INTRAOP_THREADS": n} for n in ("1", "2"))
SMOOTH = {"BENCH_ACTIVATION": "gelu"}
KINDS: dict[str, tuple[list[str], Mapping[str, str]]] = {
    "1 worker": (["--num_workers=1"], ONE_THREAD),
    "1 worker, 2 threads": (["--num_workers=1"], TWO_THREADS),
    "1 worker, 1 weight moved by 1 bit": (["--num_workers=1"], {**ONE_THREAD, "BENCH_BIT": "1"}),
    "2 workers": (["--num_workers=2"], ONE_THREAD),
    "3 workers": (["--num_workers=3"], ONE_THREAD),
    "1 worker, GELU": (["--num_workers=1"], {**ONE_THREAD, **SMOOTH}),
    "3 workers, GELU": (["--num_workers=3"], {**ONE_THREAD, **SMOOTH}),
    "1 worker, --deterministic": (["--num_workers=1", "--deterministic"], {}),
    "3 workers, --deterministic": (["--num_workers=3", "--deterministic"], {}),
}
REFERENCE = {"GELU": "1 worker, GELU", "--deterministic": "1 worker, --deterministic"}

_STEPS = flags.DEFINE_integer("steps", 1500, "Of each training.", lower_bound=100)
_STEP_TABLE = flags.DEFINE_bool("step_table", True, "Print the first table.")
_END_TABLE = flags.DEFINE_bool("end_table", True, "Print the second table.")


class Training:
    """One job. `record` has the states after its steps."""

    def __init__(self, directory: Path, options: list[str], variables: Mapping[str, str]) -> None:
        self.record, self.job_dir = directory / "record", directory / "job"
        self.record.mkdir(parents=True)
        self._output = directory / "output.txt"
        self._options = options
        self._variables = variables

    def start(self) -> subprocess.Popen[bytes]:
        """Starts the job, or continues it."""
        with self._output.open("ab") as output:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "hvd_elastic_keras.run", f"--model={MODEL}"),
                    *(f"--job_dir={self.job_dir}", f"--steps={_STEPS.value}", "--epochs=100000"),
                    *("--global_batch_size=64", "--micro_batch_size=8", "--seed=7"),
                    *self._options,
                ],
                env={
                    **os.environ,
                    "TF_CPP_MIN_LOG_LEVEL": "3",
                    recorded_steps.DIRECTORY: str(self.record),
                    **self._variables,
                },
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def end(self, process: subprocess.Popen[bytes], code: int = 0) -> None:
        """Waits for the end."""
        if process.wait(LIMIT_S) != code:
            raise SystemExit(f"the job failed:\n{self._output.read_text()[-3000:]}")

    def wait_for_step(self, step: int) -> None:
        """Waits until this many steps are finished."""
        deadline = time.monotonic() + LIMIT_S
        while not (self.record / f"{step}.npz").exists():
            if time.monotonic() > deadline:
                raise SystemExit(f"no step {step}:\n{self._output.read_text()[-3000:]}")
            time.sleep(0.01)

    def kill(self, rank: int) -> None:
        """Kills a worker of the present round."""
        pid_of = {e["worker_id"]: e["pid"] for e in self.events("worker_started")}
        os.kill(pid_of[self.events("round_running")[-1]["members"][rank]], signal.SIGKILL)

    def events(self, name: str) -> list[dict[str, Any]]:
        """Returns the events of one kind so far."""
        lines = (self.job_dir / "events.jsonl").read_text().splitlines()
        return [e for e in map(json.loads, lines) if e["event"] == name]

    def weights(self, step: int) -> np.ndarray | None:
        """Returns all trainable weights after this many steps."""
        state = recorded_steps.read_state(self.record, step)
        return None if state is None else np.concatenate([v.ravel() for v in state["trainable"]])


def disturbed(directory: Path) -> Training:
    """Runs a job with two kills and a restart from its checkpoint."""
    variables = {**ONE_THREAD, "BENCH_PACE_S": str(PACE_S)}
    training = Training(directory, ["--num_workers=3"], variables)
    process = training.start()
    for part, rank in ((0.15, 1), (0.5, 0)):
        training.wait_for_step(int(_STEPS.value * part))
        training.kill(rank)
    training.wait_for_step(int(_STEPS.value * 0.8))
    process.terminate()
    training.end(process, 143)
    training.end(training.start())
    sizes = [e["world_size"] for e in training.events("round_running")]
    print(f"disturbed job: rounds of {sizes} workers", flush=True)
    return training


def print_steps(record: Path, threads: Mapping[str, str]) -> None:
    """Prints one line of the first table.

    The steps are taken in a new process, because threads are one of a process's settings.
    """
    code = (
        "import sys; from rounding import replayed; from pathlib import Path; "
        f"print(*replayed(Path(sys.argv[1]), {_STEPS.value}))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(record)],
        cwd=HERE,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **threads},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if result.returncode:
        raise SystemExit(result.stderr[-3000:])
    numbers = np.array(result.stdout.splitlines()[-1].split(), float)
    count = "taken by 1 worker with {TF_NUM_INTRAOP_THREADS} thread(s)".format(**threads)
    print(
        f"{numbers.size} steps {count}: median {np.median(numbers):.1e}  "
        f"99% {np.quantile(numbers, 0.99):.1e}  largest {numbers.max():.1e}",
        flush=True,
    )


def replayed(record: Path, steps: int) -> Iterable[float]:
    """Returns the difference between each step and the same step in this process."""
    from hvd_elastic_keras import Trainer, TrainingConfig
    from hvd_elastic_keras.api.model_module import ModelModule

    module = ModelModule(str(MODEL), config=None, seed=7, data_dir="")
    config = TrainingConfig(
        global_batch_size=64, micro_batch_size=8, seed=7, steps=steps, epochs=100000
    )
    trainer = Trainer(module.model(), module.dataset("train"), config=config)
    return [d.by_kind["trainable"] for d in recorded_steps.replay(trainer, record)]


def print_ends(name: str, training: Training, reference: Training) -> None:
    """Prints one line of the second table: the largest difference of any weight."""
    cells = []
    for step in sorted({*(100, 300, 500, 1000), _STEPS.value}):
        found, expected = training.weights(step), reference.weights(step)
        if found is None or expected is None:
            cells.append(f"{'-':>8}")
        else:
            cells.append(f"{np.abs(found - expected).max():8.1e}")
    print(f"{name:36}" + " ".join(cells), flush=True)


def print_step_table(directory: Path) -> None:
    """Prints the first table."""
    job = disturbed(directory)
    print("difference of a step / change by the step, weights, from the same state:")
    for threads in (ONE_THREAD, TWO_THREADS):
        print_steps(job.record, threads)


def print_end_table(directory: Path) -> None:
    """Prints the second table."""
    trainings: dict[str, Training] = {}
    print("largest difference of any weight to 1 worker, after 100, 300, 500, … steps:")
    for number, (name, (options, variables)) in enumerate(KINDS.items()):
        trainings[name] = Training(directory / str(number), options, variables)
        trainings[name].end(trainings[name].start())
        reference = REFERENCE.get(name.rpartition(", ")[2], "1 worker")
        print_ends(name, trainings[name], trainings[reference])


def main(_: list[str]) -> None:
    """Prints the tables."""
    with tempfile.TemporaryDirectory() as directory:
        if _STEP_TABLE.value:
            print_step_table(Path(directory, "disturbed"))
        if _END_TABLE.value:
            print_end_table(Path(directory))


if __name__ == "__main__":
    app.run(main)
