"""Goodput: useful training while a worker is killed every minute, against the same job undisturbed.

Three local workers train a small residual network in each of these systems, one after the other:

- this project; its launcher is killed as well, once, and started again,
- Elastic Horovod, which commits every 10 steps; it has enough "hosts" to replace a banned one,
- a Horovod loop that saves a checkpoint every 10 s, and is started again when it has failed.

The last two have Horovod as it was released. A job that fails is started again.

A step is useful if it is not taken again. Goodput is the number of examples of the useful steps,
divided by that of the undisturbed job in the same time. The speed of the undisturbed job is a mean
of several times, since that of a machine changes: before and after the kills, and before each kill
if all workers train then. The speed of plain `fit` in one process is measured, too. `--plot` draws
the course of the training.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import released_horovod
import step_log
from absl import app, flags

HERE = Path(__file__).resolve().parent
MODEL, BASELINE = HERE / "goodput_model.py", HERE / "baseline_worker.py"
BATCH_SIZE, WORKERS = 192, 3
"""As the model and the baseline have them."""
POLL_S = 0.2
SHORT_S = 10.0
"""Time before a kill in which the undisturbed speed is measured."""

_MINUTES = flags.DEFINE_integer("minutes", 5, "Minutes, with one kill in each.", lower_bound=1)
_CALM_S = flags.DEFINE_float("calm_s", 30.0, "Undisturbed seconds before and after.", lower_bound=5)
_PLOT = flags.DEFINE_string("plot", "", "File for a picture of the training (PNG).")


class System:
    """A job of one system, which is started again if it ends."""

    name = "plain fit"
    is_elastic = False
    """Whether the global batch stays the same for any number of workers."""

    def __init__(self, scratch: Path, variables: Mapping[str, str] | None = None) -> None:
        self.scratch, self._variables = scratch, variables
        self.log_dir = scratch / "steps"
        self.log_dir.mkdir(parents=True)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The launcher, or the only process."""
        if self._process is None:
            raise RuntimeError("the job has not been started")
        return self._process

    def command(self) -> list[str]:
        """Returns the command of the job."""
        return [sys.executable, str(MODEL)]

    def keep_going(self) -> None:
        """Starts the job if it does not run, also if it has failed."""
        if self._process is None or self._process.poll() is not None:
            output = self.scratch / "output.txt"
            self._process = step_log.start(self.command(), self.log_dir, output, self._variables)

    def wait(self, look: Callable[[], Any], what: str) -> Any:
        """Waits until `look` finds something, and keeps the job going meanwhile."""
        return step_log.wait(lambda: self.keep_going() or look(), what)

    def workers(self) -> list[int]:
        """Returns the process ids of the workers that can be killed."""
        return [self.process.pid]


class Ours(System):
    """This project."""

    name = "hvd_elastic_keras"
    is_elastic = True

    def command(self) -> list[str]:
        """Returns the command of the job, which also continues it."""
        return [
            *(sys.executable, "-m", "hvd_elastic_keras.run", f"--model={MODEL}"),
            *(f"--num_workers={WORKERS}", "--max_restarts=1000", "--epochs=100000"),
            *(f"--global_batch_size={BATCH_SIZE}", f"--job_dir={self.scratch / 'job'}"),
        ]

    def workers(self) -> list[int]:
        """Returns the members of the latest round."""
        return step_log.members(self.scratch / "job")


class ElasticHorovod(System):
    """Elastic Horovod, with hosts that are this machine."""

    name = "Elastic Horovod"

    def command(self) -> list[str]:
        """Returns the command of the job."""
        discovery = self.scratch / "discover.sh"
        # A host is banned after a failure. Capital letters make other hosts of the same name.
        names = itertools.product(*zip("localhost", "LOCALHOST", strict=True))
        hosts = map("".join, itertools.islice(names, WORKERS + _MINUTES.value))
        discovery.write_text("#!/bin/sh\n" + "".join(f"echo {host}:1\n" for host in hosts))
        discovery.chmod(0o755)
        return [
            *(sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", str(WORKERS)),
            *("--min-np", "1", "--max-np", str(WORKERS), "--network-interfaces", "lo"),
            *("--host-discovery-script", str(discovery)),
            *(sys.executable, str(BASELINE), MODEL.stem),
        ]

    def workers(self) -> list[int]:
        """Returns the workers that have begun to train."""
        return step_log.workers_of(self.process.pid, self.log_dir)


class Checkpoints(ElasticHorovod):
    """A loop that begins again with its last checkpoint."""

    name = "restart from checkpoints"

    def command(self) -> list[str]:
        """Returns the command of the job, which also continues it."""
        return [
            *(sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", str(WORKERS)),
            *("-H", f"localhost:{WORKERS}", "--network-interfaces", "lo"),
            *(sys.executable, str(BASELINE), MODEL.stem, str(self.scratch / "checkpoint.npz")),
        ]


@dataclasses.dataclass(frozen=True)
class Course:
    """The training of one system.

    Attributes:
      name: the system.
      rate: examples per second of the undisturbed job, in the mean.
      seconds: length of the time with kills.
      useful: for each useful step of that time, when it was finished (seconds), and how many
        examples were trained by then.
      kills: when workers were killed, in seconds.
    """

    name: str
    rate: float
    seconds: float = 0.0
    useful: Sequence[tuple[float, float]] = ()
    kills: Sequence[float] = ()

    @property
    def goodput(self) -> float:
        """Useful examples, divided by those of the undisturbed job in the same time."""
        return self.useful[-1][1] / (self.rate * self.seconds)

    @property
    def lost_per_kill_s(self) -> float:
        """Seconds of undisturbed training that a kill costs."""
        return (1 - self.goodput) * self.seconds / len(self.kills)


def useful(system: System, since: float, until: float) -> list[tuple[float, float]]:
    """Returns the useful steps of a time: seconds since its begin, and examples trained by then."""
    noted = step_log.steps(system.log_dir)
    reached = noted[-1].number
    last = {s.number: s for s in noted if s.number <= reached}
    found, examples = [(0.0, 0.0)], 0.0
    for step in sorted(last.values()):
        if since < step.time_s <= until:
            share = 1.0 if system.is_elastic else step.workers / WORKERS
            examples += BATCH_SIZE * share
            found.append((step.time_s - since, examples))
    return found


def rate(system: System, since: float, until: float) -> float:
    """Returns the useful examples per second of a time."""
    return useful(system, since, until)[-1][1] / (until - since)


def calm_rate(system: System, workers: int) -> float:
    """Waits until all train; returns the examples per second of some undisturbed seconds."""
    settled = step_log.settled(system.log_dir, workers, time.monotonic())
    system.wait(settled, f"steps of {workers} workers")
    began = time.monotonic()
    time.sleep(_CALM_S.value)
    return rate(system, began, time.monotonic())


def undisturbed(system: System, until: float) -> list[float]:
    """Returns the examples per second before a moment; nothing unless all workers trained."""
    began = until - SHORT_S
    steps = [s for s in step_log.steps(system.log_dir) if began < s.time_s <= until]
    if any(s.workers != WORKERS for s in steps) or not steps:
        return []
    return [rate(system, began, until)]


def measure(system: System, draw: random.Random) -> Course:
    """Disturbs the job of a system."""
    system.keep_going()
    try:
        before = calm_rate(system, WORKERS)
        rates, began, kills = [before], time.monotonic(), []
        for minute in range(_MINUTES.value):
            os.kill(draw.choice(system.wait(system.workers, "worker")), signal.SIGKILL)
            kills.append(time.monotonic() - began)
            while time.monotonic() < began + 60 * minute + 30:
                system.keep_going()
                time.sleep(POLL_S)
            if isinstance(system, Ours) and minute == _MINUTES.value // 2:
                system.process.kill()
                system.process.wait()
            while time.monotonic() < began + 60 * (minute + 1):
                system.keep_going()
                time.sleep(POLL_S)
            rates += undisturbed(system, time.monotonic())
        ended = time.monotonic()
        try:
            rates.append(calm_rate(system, WORKERS))
        except TimeoutError as error:
            print(f"{system.name}: {error} after the last kill", flush=True)
        found = useful(system, began, ended)
        course = Course(system.name, statistics.mean(rates), ended - began, found, kills)
    finally:
        step_log.end(system.process)
    print(
        f"{course.name:26}{course.rate:8.0f} examples/s, undisturbed ({min(rates):.0f} to "
        f"{max(rates):.0f}); one kill per minute: goodput {course.goodput:.1%}, "
        f"{course.lost_per_kill_s:.1f} s lost per kill",
        flush=True,
    )
    return course


def plot(courses: Sequence[Course], path: Path) -> None:
    """Draws how training goes on."""
    from convergence_plots import COLOURS
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 4.2), dpi=100, layout="constrained")
    axis = figure.subplots()
    seconds = courses[0].seconds
    axis.plot([0, seconds], [0, seconds], color="0.75", lw=6, label="without kills")
    for course, colour in zip(courses, COLOURS, strict=False):
        times = [t for t, _ in course.useful]
        reached = [examples / course.rate for _, examples in course.useful]
        label = f"{course.name}: {course.goodput:.0%}"
        axis.plot(times, reached, color=colour, lw=1.8, label=label)
    for number, moment in enumerate(courses[0].kills):
        label = None if number else "a worker is killed"
        axis.axvline(moment, color="red", ls="--", lw=0.8, label=label)
    axis.set_xlabel("seconds since the first kill")
    axis.set_ylabel("useful training, in seconds without kills")
    axis.set_xlim(0, seconds)
    axis.set_ylim(0)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(path)


def main(_: list[str]) -> None:
    """Measures, prints and draws."""
    with (
        tempfile.TemporaryDirectory(prefix="bench_goodput_") as directory,
        released_horovod.variables() as released,
    ):
        alone = System(Path(directory) / "plain")
        alone.keep_going()
        try:
            plain = calm_rate(alone, 1)
        finally:
            step_log.end(alone.process)
        print(f"{alone.name:26}{plain:8.0f} examples/s, undisturbed, in one process", flush=True)
        courses = [
            measure(kind(Path(directory) / kind.__name__, variables), random.Random(0))
            for kind, variables in ((Ours, {}), (ElasticHorovod, released), (Checkpoints, released))
        ]
    if _PLOT.value:
        plot(courses, Path(_PLOT.value))


if __name__ == "__main__":
    app.run(main)
