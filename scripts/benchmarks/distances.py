"""Measures a job whose hosts are far from each other; needs root and Debian's openssh-server.

    scripts/bench distances --one_way_ms=25 --hosts=3

The hosts are network namespaces of this machine. A message takes `one_way_ms` between this machine,
where the launcher runs, and a host. Between two hosts it takes twice as long.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
from absl import app, flags
from slow_link import Cables

from hvd_elastic_keras.cli import control_job
from tests.harness.hosts import Hosts
from tests.harness.job import Job

_ONE_WAY_MS = flags.DEFINE_float("one_way_ms", 25.0, "of each host's cable")
_HOSTS = flags.DEFINE_integer("hosts", 3, "so many, with a worker each", lower_bound=3)

HERE = Path(__file__).parent
WATCHED_S = 10.0


class Measured:
    """A job on some hosts, and the costs of its changes."""

    def __init__(self, job: Job, hosts: Hosts) -> None:
        self.job = job
        self.hosts = hosts
        self._round = 0

    def wait(self, what: str, workers: int) -> None:
        """Waits for a round of this many workers, and prints what the change cost."""
        event = self.job.wait_for_round(workers, self._round)
        self._round = event["round"]
        print(f"{what}: {_parts(event)}, {event['steps_lost']} steps lost", flush=True)

    def steps(self) -> None:
        """Prints how long a step takes."""
        first, began = self._step(), time.monotonic()
        time.sleep(WATCHED_S)
        taken = self._step() - first
        print(f"{1e3 * (time.monotonic() - began) / max(1, taken):.0f} ms per step", flush=True)

    def kill(self, host: str) -> None:
        """Kills the workers of a host."""
        for pid in self.hosts.pids(host):
            process = psutil.Process(pid)
            if "hvd_elastic_keras.cli.worker_main" in process.cmdline():
                process.kill()

    def _step(self) -> int:
        return control_job.read_status(self.job.job_dir).step


def _parts(event: dict[str, Any]) -> str:
    names = ("noticed_s", "entered_s", "synced_s")
    return f"{event['stall_s']} s ({' + '.join(str(event[name]) for name in names)})"


@contextmanager
def measured(count: int, one_way_ms: float) -> Iterator[Measured]:
    """Yields a job on this many hosts, with one worker on each."""
    with ExitStack() as opened:
        scratch = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        hosts = opened.enter_context(Hosts(scratch / "hosts", ("eth0",) * count))
        cables = opened.enter_context(Cables(one_way_ms))
        for host in hosts.names:
            hosts.exchange_cable(host, cables.connect)
        job = Job(
            scratch,
            f"--hosts={','.join(hosts.names)}",
            f"--bind={hosts.launcher}",
            f"--ssh_command=ssh -F {hosts.ssh_config} -o ConnectTimeout=5",
            command=(f"--model={HERE / 'soak_model.py'}", "--epochs=100000"),
        )
        yield Measured(opened.enter_context(job), hosts)
        job.process.send_signal(signal.SIGINT)
        job.process.wait()


def main(_: list[str]) -> None:
    """Kills workers, cuts two hosts off and turns one off; all of them come back."""
    count = _HOSTS.value
    with measured(count, _ONE_WAY_MS.value) as found:
        names = found.hosts.names
        found.wait("start", count)
        found.steps()
        for host in (names[1], names[0]):
            found.kill(host)
            found.wait("one killed", count - 1)
            found.wait("it joins", count)
        for host in names[-2:]:
            found.hosts.cut(host)
        found.wait("two cut off", count - 2)
        for host in names[-2:]:
            found.hosts.heal(host)
        found.wait("they join", count)
        found.hosts.power_off(names[0])
        found.wait("one powered off", count - 1)
        found.hosts.boot(names[0])
        found.wait("it joins", count)
        print(found.job.output)


if __name__ == "__main__":
    app.run(main)
