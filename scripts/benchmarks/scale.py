"""Fits a model of the time of an allreduce to a few hosts, and predicts it for many.

Each host is a network namespace of this machine with one worker, and sends at most `--rates`. N
workers that sum S bytes go round a ring: each passes 2 (N - 1) parts of S / N bytes on to the next
one. More than 4 workers need only 2 log N messages for few bytes (BUILD.md). Before, all agree on
what they sum, with few bytes. The model of the time is

    constant + messages * (message * shared + waits * latency) + bytes * (link + byte * shared)

where `messages` wait for one another, with those of the agreement, and `bytes` are those that a
worker sends. `latency` is the time of a small message between two hosts, and `link` the time of a
byte at the rate of the cable. `message` and `byte` are what these cost a processor, and `shared` is
the number of workers for each processor of this machine, at least 1: it is 1 where each worker has
a host of its own. `constant`, `message`, `waits` and `byte` are fitted. Needs root and Debian's
openssh-server.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil
from absl import app, flags
from slow_link import Cables

from tests.harness.hosts import Hosts

_WORKERS = flags.DEFINE_list("workers", ["2", "4", "8"], "Numbers of workers.")
_RATES = flags.DEFINE_list("rates", ["1", "10"], "Gbit/s that each host may send.")
_BYTES = flags.DEFINE_list(
    "bytes", ["1024", "65536", "1048576", "16777216", "67108864"], "Of a sum."
)
_MEASURED_S = flags.DEFINE_float("measured_s", 3.0, "Seconds of each measurement, at least.")
_LATENCY_US = flags.DEFINE_float(
    "latency_us", 30.0, "Of a small message between two hosts, for the predictions."
)
_WORKER = flags.DEFINE_boolean("worker", False, "One of the workers: for this script itself.")

LIMIT = "tc qdisc replace dev eth0 root tbf rate {rate}gbit burst 192kb latency 50ms"
LIMIT_S = 900.0
PORT = 7000
ROUND_TRIPS = 500
SLOW_MS, SMALL = 2.0, 1024
"""Of a message between two hosts whose cables are slow, and the bytes of the sums there."""
MOST_IN_RING, FEW_BYTES = 4, 65536
"""Of our change to Gloo."""
NANOSECONDS = 8.0
"""Of a byte, at 1 Gbit/s."""
MANY = (8, 64, 512)
NETWORKS = {"small ResNet": 0.1e6, "ResNet-50": 102e6, "BERT base": 440e6}
"""Bytes of the gradients."""


@dataclasses.dataclass(frozen=True)
class Sum:
    """One measurement: an allreduce of some bytes by all workers.

    Attributes:
      rate: of the cables, in Gbit/s.
      latency: seconds that a small message takes from host to host.
      busy: the part of the time in which the processors of this machine worked.
    """

    workers: int
    rate: float
    latency: float
    bytes: float
    seconds: float = 0.0
    busy: float = 0.0

    @property
    def messages(self) -> float:
        """Messages that wait for one another: those of the agreement, and those of the sum."""
        return messages_of(self.workers, 0) + messages_of(self.workers, self.bytes)

    @property
    def sent(self) -> float:
        """Bytes that each worker sends."""
        return 2 * self.bytes * (self.workers - 1) / self.workers

    @property
    def link(self) -> float:
        """Seconds in which a cable is busy."""
        return self.sent * NANOSECONDS / 1e9 / self.rate

    @property
    def shared(self) -> float:
        """Workers for each processor of this machine."""
        return max(1.0, self.workers / (os.cpu_count() or 1))


def messages_of(workers: int, num_bytes: float) -> float:
    """Returns the messages of a sum that wait for one another."""
    if workers > MOST_IN_RING and num_bytes <= FEW_BYTES:
        return 2 * math.log2(workers)
    return 2.0 * (workers - 1)


@dataclasses.dataclass(frozen=True)
class Model:
    """The fitted model; all values but `waits` are seconds."""

    constant: float
    message: float
    waits: float
    byte: float

    def seconds(self, of: Sum, *, shared: float = 1.0) -> float:
        """Returns the time of an allreduce."""
        message = self.message * shared + self.waits * of.latency
        byte = self.byte * shared
        return self.constant + message * of.messages + of.link + byte * of.sent


def fitted(found: Sequence[Sum]) -> Model:
    """Fits the model with the least sum of squares of relative errors; no value is negative."""
    seconds = np.array([s.seconds for s in found])
    rows = [[1.0, s.messages * s.shared, s.messages * s.latency, s.sent * s.shared] for s in found]
    parts = np.array(rows) / seconds[:, None]
    wanted = 1 - np.array([s.link for s in found]) / seconds
    best, least = np.zeros(4), np.inf
    for used in itertools.product([False, True], repeat=4):  # the others are 0
        values = np.zeros(4)
        columns = parts[:, used]
        scale = columns.max(0)
        values[list(used)] = np.linalg.lstsq(columns / scale, wanted)[0] / scale
        error = float(np.sum(np.square(parts @ values - wanted)))
        if values.min() >= 0 and error < least:
            best, least = values, error
    return Model(*best)


def errors(model: Model, found: Sequence[Sum]) -> list[float]:
    """Returns by how much each measurement differs from the model, relative to the measurement."""
    return [model.seconds(s, shared=s.shared) / s.seconds - 1 for s in found]


# --- the workers -------------------------------------------------------------------------


def work() -> None:
    """Measures all sizes, as one of the workers; rank 0 prints a line for each."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    if hvd.rank() < 2:
        measure_latency(hvd.rank())
    flag = tf.zeros([1])  # with it, there is a group, which begins its cycle at once
    for size in map(int, _BYTES.value):
        values = tf.zeros([size // 4])

        def reduce(values: tf.Tensor = values, name: str = f"sum_of_{size}") -> None:
            hvd.grouped_allreduce([values, flag], op=hvd.Sum, name=name)[0].numpy()

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


def measure_latency(rank: int) -> None:
    """Measures how long a small message takes between two hosts; rank 0 prints it."""
    if rank:
        with contextlib.suppress(ConnectionResetError), connected() as connection:
            while got := connection.recv(1):
                connection.sendall(got)
        return
    with socket.create_server(("", PORT)) as listening:
        connection, _ = listening.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            times = []
            for _ in range(ROUND_TRIPS):
                began = time.perf_counter()
                connection.sendall(b"x")
                connection.recv(1)
                times.append(time.perf_counter() - began)
    print(json.dumps({"latency": statistics.median(times) / 2}), flush=True)


def connected() -> socket.socket:
    """Returns a connection to rank 0."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            connection = socket.create_connection(("host1", PORT))
        except ConnectionRefusedError:  # it does not listen yet
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection


def measured(hosts: Hosts, workers: int, rate: float, *options: str) -> list[Sum]:
    """Returns what this many workers measure, one on each host."""
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
            command = [sys.executable, *sys.argv, "--worker", *options]
            output = subprocess.PIPE if place.rank == 0 else None
            running.append(hosts.run(place.hostname, command, env=environment, stdout=output))
        text, _ = running[0].communicate(timeout=LIMIT_S)
        for process in running:
            process.wait(LIMIT_S)
        latency, *found = map(json.loads, text.decode().splitlines())
        print(f"{workers} workers at {rate:g} Gbit/s are measured", flush=True)
        return [Sum(workers, rate, **latency, **one) for one in found]
    finally:
        server.stop()


# --- what is shown -----------------------------------------------------------------------


def show(found: Sequence[Sum]) -> Model:
    """Prints the measurements, and the model that is fitted to them."""
    model = fitted(found)
    print("| Gbit/s | latency, ms | workers | bytes | ms | model, ms | error | processors |")
    print("|---|---|---|---|---|---|---|---|")
    for s, error in zip(found, errors(model, found), strict=True):
        print(
            f"| {s.rate:g} | {1e3 * s.latency:.2f} | {s.workers} | {s.bytes:,} "
            f"| {1e3 * s.seconds:.2f} | {1e3 * model.seconds(s, shared=s.shared):.2f} "
            f"| {100 * error:+.0f} % | {100 * s.busy:.0f} % |"
        )
    print(
        f"\nconstant {1e3 * model.constant:.2f} ms, message {1e6 * model.message:.0f} us, "
        f"waits {model.waits:.1f}, byte {1e9 * model.byte:.2f} ns\n"
        f"error: {_of_errors(model, found)}"
    )
    most = max(s.workers for s in found)
    few, others = ([s for s in found if (s.workers == most) == last] for last in (False, True))
    if few:
        print(f"fitted to fewer workers, error for {most}: {_of_errors(fitted(few), others)}")
    return model


def _of_errors(model: Model, found: Sequence[Sum]) -> str:
    sizes = [100 * abs(e) for e in errors(model, found)]
    return f"{statistics.median(sizes):.0f} % in the median, {max(sizes):.0f} % at most"


def show_predictions(model: Model, rates: Sequence[float]) -> None:
    """Prints the time of the sum of a step for many workers, each on a host of its own."""
    print(f"\n| gradients | Gbit/s | {' | '.join(f'{n} workers' for n in MANY)} |")
    print("|---|---|" + "---|" * len(MANY))
    latency = _LATENCY_US.value / 1e6
    for (name, size), rate in itertools.product(NETWORKS.items(), rates):
        cells = [f"{model.seconds(Sum(n, rate, latency, size)):.3f} s" for n in MANY]
        print(f"| {name}, {size / 1e6:g} MB | {rate:g} | {' | '.join(cells)} |")


def main(_: list[str]) -> None:
    """Measures, fits and predicts."""
    if _WORKER.value:
        work()
        return
    counts, rates = sorted(map(int, _WORKERS.value)), list(map(float, _RATES.value))
    found: list[Sum] = []
    with ExitStack() as opened:
        scratch = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        hosts = opened.enter_context(Hosts(scratch, ("eth0",) * counts[-1]))
        for rate, count in itertools.product(rates, counts):
            found += measured(hosts, count, rate)
        cables = opened.enter_context(Cables(SLOW_MS / 2))
        near = counts[:2]
        for host in hosts.names[: near[-1]]:
            hosts.exchange_cable(host, cables.connect)
        for count in near:
            found += measured(hosts, count, rates[-1], f"--bytes={SMALL}")
    show_predictions(show(found), [*rates, 100.0])


if __name__ == "__main__":
    app.run(main)
