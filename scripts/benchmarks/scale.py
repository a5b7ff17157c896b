"""Fits a model of the time of an allreduce to a few hosts, and predicts steps of many workers.

Each host is a network namespace of this machine with one worker, and sends at most `--rates`. The
model is that of a ring: each worker passes 2 (N - 1) parts of S / N bytes on to the next one, and

    seconds = constant + hop * 2 (N - 1) + byte * 2 S (N - 1) / N

The hosts share the processors of this machine, and each byte costs processor time. Measurements
that kept the processors busy are about this machine rather than about the ring. They are shown,
but nothing is fitted to them. Needs root and Debian's openssh-server.
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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil
from absl import app, flags

from tests.harness.hosts import Hosts

_WORKERS = flags.DEFINE_list("workers", ["2", "4", "8"], "Numbers of workers.")
_RATES = flags.DEFINE_list("rates", ["1", "10"], "Gbit/s that each host may send.")
_BYTES = flags.DEFINE_list("bytes", ["4", "65536", "1048576", "16777216", "67108864"], "Of a sum.")
_MEASURED_S = flags.DEFINE_float("measured_s", 3.0, "Seconds of each measurement, at least.")
_HOP_US = flags.DEFINE_list("hop_us", ["50"], "Microseconds of a hop, for the predictions.")
_WORKER = flags.DEFINE_boolean("worker", False, "One of the workers: for this script itself.")

LIMIT = "tc qdisc replace dev eth0 root tbf rate {rate}gbit burst 1mb latency 50ms"
LIMIT_S = 900.0
BUSY = 0.9
"""The part of the processors' time above which they are the limit."""
BITS = 1e9 / 8
MANY = (8, 64, 512)
NETWORKS = {"small ResNet": 0.1e6, "ResNet-50": 102e6, "BERT base": 440e6}
"""Bytes of the gradients."""


@dataclasses.dataclass(frozen=True)
class Sum:
    """One measurement: an allreduce of some bytes by all workers.

    Attributes:
      busy: the part of the time in which the processors of this machine worked.
    """

    workers: int
    rate: float
    bytes: int
    seconds: float
    busy: float

    @property
    def hops(self) -> float:
        """Messages that each worker waits for, one after the other."""
        return 2.0 * (self.workers - 1)

    @property
    def sent(self) -> float:
        """Bytes that each worker sends."""
        return self.bytes * self.hops / self.workers


@dataclasses.dataclass(frozen=True)
class Ring:
    """The fitted model; all values are seconds."""

    constant: float
    hop: float
    byte: float

    def seconds(self, workers: int, num_bytes: float) -> float:
        """Returns the time of an allreduce."""
        hops = 2.0 * (workers - 1)
        return self.constant + self.hop * hops + self.byte * num_bytes * hops / workers


def fitted(found: Sequence[Sum]) -> Ring:
    """Fits the model with the least sum of squares of relative errors."""
    from scipy.optimize import nnls

    equations = np.array([[1.0, s.hops, s.sent] for s in found])
    seconds = np.array([s.seconds for s in found])
    scale = equations.max(0)
    values, _ = nnls(equations / seconds[:, None] / scale, np.ones(len(found)))
    return Ring(*(values / scale))


def errors(ring: Ring, found: Sequence[Sum]) -> list[float]:
    """Returns by how much each measurement differs from the model, relative to it."""
    return [s.seconds / ring.seconds(s.workers, s.bytes) - 1 for s in found]


# --- the workers -------------------------------------------------------------------------


def work() -> None:
    """Measures all sizes, as one of the workers; rank 0 prints a line for each."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    for size in map(int, _BYTES.value):
        values = tf.zeros([size // 4])

        def reduce(values: tf.Tensor = values, name: str = f"sum_of_{size}") -> None:
            hvd.allreduce(values, op=hvd.Sum, name=name).numpy()

        for _ in range(3):
            reduce()
        began = time.perf_counter()
        reduce()
        once = tf.constant(time.perf_counter() - began)
        count = max(5, int(_MEASURED_S.value / float(hvd.broadcast(once, 0, name=f"once_{size}"))))
        psutil.cpu_percent()
        times = []
        for _ in range(count):
            began = time.perf_counter()
            reduce()
            times.append(time.perf_counter() - began)
        if hvd.rank() == 0:
            found = {"bytes": size, "seconds": statistics.median(times)}
            print(json.dumps({**found, "busy": psutil.cpu_percent() / 100}), flush=True)


def measured(hosts: Hosts, workers: int, rate: float) -> Iterator[Sum]:
    """Runs this many workers, one on each host, and yields what they measure."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    names = hosts.names[:workers]
    for name in names:
        hosts.call(name, *LIMIT.format(rate=rate).split())
    places = get_host_assignments(parse_hosts(",".join(f"{n}:1" for n in names)), workers)
    server = RendezvousServer()
    port = server.start()
    server.init(places)
    running = []
    try:
        for place in places:
            environment = {
                **os.environ,
                **{f"HOROVOD_{k.upper()}": str(v) for k, v in vars(place).items()},
                "HOROVOD_CONTROLLER": "gloo",
                "HOROVOD_CPU_OPERATIONS": "gloo",
                "HOROVOD_GLOO_IFACE": "eth0",
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": hosts.launcher,
                "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
                "HOROVOD_CYCLE_TIME": "1",
                "HOROVOD_FUSION_THRESHOLD": str(2**24),
                "TF_CPP_MIN_LOG_LEVEL": "3",
            }
            command = [sys.executable, *sys.argv, "--worker"]
            output = subprocess.PIPE if place.rank == 0 else None
            running.append(hosts.run(place.hostname, command, env=environment, stdout=output))
        text, _ = running[0].communicate(timeout=LIMIT_S)
        for line in text.decode().splitlines():
            yield Sum(workers=workers, rate=rate, **json.loads(line))
        for process in running:
            process.wait(LIMIT_S)
    finally:
        server.stop()


# --- what is shown -----------------------------------------------------------------------


def show_rate(rate: float, found: Sequence[Sum]) -> Ring:
    """Prints the measurements of a rate, and the model that is fitted to them."""
    used = [s for s in found if s.busy < BUSY]
    ring = fitted(used)
    print(f"\n{rate:g} Gbit/s\n\n| workers | bytes | ms | model, ms | error | processors |")
    print("|---|---|---|---|---|---|")
    for s, error in zip(found, errors(ring, found), strict=True):
        model = ring.seconds(s.workers, s.bytes)
        note = "" if s in used else ", not fitted"
        print(
            f"| {s.workers} | {s.bytes:,} | {1e3 * s.seconds:.2f} | {1e3 * model:.2f} "
            f"| {100 * error:+.0f} % | {100 * s.busy:.0f} %{note} |"
        )
    print(
        f"\nconstant {1e3 * ring.constant:.2f} ms, hop {1e6 * ring.hop:.0f} us, "
        f"byte {1e9 * ring.byte:.2f} ns (the link alone: {1e9 / (rate * BITS):.2f} ns); "
        f"error in the median {100 * _median_error(ring, used):.0f} %"
    )
    most = max(s.workers for s in used)
    fewer, others = (
        [s for s in used if s.workers < most],
        [s for s in used if s.workers == most],
    )
    if len({s.workers for s in fewer}) > 1:
        error = _median_error(fitted(fewer), others)
        print(f"fitted to fewer workers, it is wrong by {100 * error:.0f} % for {most}")
    return ring


def _median_error(ring: Ring, found: Sequence[Sum]) -> float:
    return statistics.median(map(abs, errors(ring, found)))


def show_predictions(rings: dict[float, Ring]) -> None:
    """Prints the time of the sum of a step for many workers."""
    for hop in map(float, _HOP_US.value):
        print(f"\nSeconds of a step's sum, with {hop:g} us of a hop\n")
        columns = [f"{n} workers" for n in MANY]
        print("| gradients | " + " | ".join(["link", *columns]) + " |")
        print("|---|---|" + "---|" * len(MANY))
        for name, num_bytes in NETWORKS.items():
            for rate, ring in rings.items():
                there = dataclasses.replace(ring, hop=hop / 1e6)
                cells = [f"{there.seconds(n, num_bytes):.3f}" for n in MANY]
                print(f"| {name} | {rate:g} Gbit/s | " + " | ".join(cells) + " |")


def main(_: list[str]) -> None:
    """Measures, fits and predicts."""
    if _WORKER.value:
        work()
        return
    counts, rings = sorted(map(int, _WORKERS.value)), {}
    with ExitStack() as opened:
        scratch = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        hosts = opened.enter_context(Hosts(scratch, ("eth0",) * counts[-1]))
        for rate in map(float, _RATES.value):
            found = [s for count in counts for s in measured(hosts, count, rate)]
            rings[rate] = show_rate(rate, found)
    show_predictions(rings)


if __name__ == "__main__":
    app.run(main)
