"""What the master costs with many workers, which are simulated: real HTTP, no training.

These are measured for each number of workers: the time to form a round (all join, all get a place,
all run), the time until all know that one leaves, the time of the next round, the cost of
heartbeats for the master while all train, and the cost of the rendezvous store that Gloo's full
mesh reads. The workers run in this process, the master in another one. Both need a core.
"""

from __future__ import annotations

import asyncio
import dataclasses
import io
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from absl import app, flags

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import rows  # noqa: E402
from simulated_workers import Connection, SimulatedWorker, alive, all_of  # noqa: E402

from hvd_elastic_keras.common import control, messages  # noqa: E402
from hvd_elastic_keras.launchers.base import LaunchedWorker  # noqa: E402
from hvd_elastic_keras.master.controller import Controller  # noqa: E402
from hvd_elastic_keras.master.journal import Term  # noqa: E402
from hvd_elastic_keras.observe.console import Console  # noqa: E402
from hvd_elastic_keras.settings.job_config import JobConfig  # noqa: E402

ADDRESS = "<HHI120xq"
"""What a member writes for each other member: a socket address in 128 bytes, and a number."""
READERS = 32
MEGABYTE = 2**20

_WORKERS = flags.DEFINE_list("workers", ["10", "100", "1000"], "Numbers of workers.")
_STEADY_S = flags.DEFINE_float("steady_s", 5.0, "Seconds of heartbeats.", lower_bound=1.0)
_PROFILE = flags.DEFINE_string("profile", "", "File for a profile (cProfile) of the last master.")


@dataclasses.dataclass(frozen=True)
class Measured:
    """The measurements for one number of workers, in seconds unless the name says otherwise."""

    workers: int
    joined_s: float
    """From the first message until all workers have a place."""
    running_s: float
    """Until the master knows that all workers train."""
    forming_cpu_s: float
    """The master's CPU time for both. The simulation's own cost is not part of it."""
    told_s: float
    """From one worker's request to leave until all others know."""
    next_round_s: float
    heartbeat_ms: float
    """Median time of a heartbeat while all workers train."""
    cpu_percent: float
    """Percent of a core that the master uses while all workers train."""
    memory_mb: float
    """The memory of the master at the end."""
    mesh_s: float
    """The time in which all members write their addresses to the rendezvous store and read those of
    the others."""

    @property
    def formed_s(self) -> float:
        """The seconds to form a whole round."""
        return self.joined_s + self.running_s


COLUMNS: Sequence[tuple[str, str, Callable[[Measured], float]]] = (
    ("all placed, s", "{:.2f}", lambda m: m.joined_s),
    ("round formed, s", "{:.2f}", lambda m: m.formed_s),
    ("its CPU, s", "{:.2f}", lambda m: m.forming_cpu_s),
    ("update to all, s", "{:.3f}", lambda m: m.told_s),
    ("next round, s", "{:.2f}", lambda m: m.next_round_s),
    ("heartbeat, ms", "{:.1f}", lambda m: m.heartbeat_ms),
    ("CPU, %", "{:.0f}", lambda m: m.cpu_percent),
    ("memory, MB", "{:.0f}", lambda m: m.memory_mb),
    ("addresses of a mesh, s", "{:.2f}", lambda m: m.mesh_s),
)


class IdleLauncher:
    """Starts nothing: the workers join by themselves."""

    def __init__(self) -> None:
        self._running: dict[str, Any] = {}

    def launch(self, worker_id: str, host: str, on_exit: Any) -> LaunchedWorker:
        """Notes the worker as started."""
        self._running[worker_id] = on_exit
        return LaunchedWorker(host, 1)

    def adopt(self, worker_id: str, on_exit: Any) -> None:
        """Returns None: there are no workers to adopt."""

    def kill(self, worker_id: str) -> None:
        """Forgets the worker."""
        self._running.pop(worker_id, None)

    def running(self) -> list[str]:
        """Returns the workers that were started."""
        return list(self._running)

    def close(self) -> None:
        """Does nothing: there is nothing to remove."""


def serve(job_dir: Path, workers: int, to_parent: Pipe, profile: str) -> None:
    """Runs one job in the master's process until it is told to stop."""
    if not profile:
        asyncio.run(_serve(job_dir, workers, to_parent))
        return
    import cProfile

    with cProfile.Profile() as profiler:
        asyncio.run(_serve(job_dir, workers, to_parent))
    profiler.dump_stats(profile)


async def _serve(job_dir: Path, workers: int, to_parent: Pipe) -> None:
    console = Console(io.StringIO())
    patient = dict.fromkeys(("heartbeat_timeout_s", "enter_timeout_s", "start_timeout_s"), 600.0)
    config = JobConfig(num_workers=workers, max_workers=workers, stop_grace_s=0.5, **patient)
    controller = Controller(config, job_dir, console, Term(job_dir, (), console))
    await controller.start("127.0.0.1")
    run = asyncio.create_task(controller.run(IdleLauncher()))
    while len(controller.status().workers) < workers:
        await asyncio.sleep(0.01)
    to_parent.send((controller.address, controller.token))
    await asyncio.to_thread(to_parent.recv)
    controller.stop("measured")
    controller.stop("measured")
    await run


async def measure(address: str, token: str, process: psutil.Process, count: int) -> Measured:
    """Measures one number of workers, from the first message on."""
    workers = [SimulatedWorker(address, token, number) for number in range(count)]
    used = _cpu_s(process)
    async with alive(workers):
        joined_s = await all_of(workers, SimulatedWorker.join)
        running_s = await all_of(workers, SimulatedWorker.run)
        forming_cpu_s = _cpu_s(process) - used
        await _check_running(Connection(address, token), count)
        heartbeat_ms, cpu_percent = await _steady(workers, process)
        told_s, next_round_s = await _leave(workers)
    mesh_s = await _mesh(address.rpartition(":")[0], workers, count)
    memory = process.memory_info().rss / MEGABYTE
    return Measured(
        workers=count,
        joined_s=joined_s,
        running_s=running_s,
        forming_cpu_s=forming_cpu_s,
        told_s=told_s,
        next_round_s=next_round_s,
        heartbeat_ms=heartbeat_ms,
        cpu_percent=cpu_percent,
        memory_mb=memory,
        mesh_s=mesh_s,
    )


async def _check_running(connection: Connection, count: int) -> None:
    status = messages.decode(await connection.call("GET", "status"), control.JobStatus)
    members = sum(worker.rank is not None for worker in status.workers)
    if status.phase != "running" or members != count:
        raise RuntimeError(f"{status.phase} with {members} members, expected {count}")


async def _steady(
    workers: Sequence[SimulatedWorker], process: psutil.Process
) -> tuple[float, float]:
    for worker in workers:
        worker.heartbeat_s.clear()
    began, used = time.monotonic(), _cpu_s(process)
    await asyncio.sleep(_STEADY_S.value)
    cpu = (_cpu_s(process) - used) / (time.monotonic() - began)
    taken = [s for worker in workers for s in worker.heartbeat_s]
    return 1000 * statistics.median(taken) if taken else float("inf"), 100 * cpu


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def _leave(workers: Sequence[SimulatedWorker]) -> tuple[float, float]:
    began = time.monotonic()
    await workers[-1].leave()
    while not all(worker.pending_at for worker in workers):
        await asyncio.sleep(0.005)
    told_s = max(worker.pending_at for worker in workers) - began
    began = time.monotonic()
    await all_of(workers, SimulatedWorker.enter)
    await all_of(workers[:-1], SimulatedWorker.run)
    return told_s, time.monotonic() - began


async def _mesh(host: str, workers: Sequence[SimulatedWorker], count: int) -> float:
    """Returns the seconds of the requests of a mesh. Each has its own connection, as in Gloo."""
    place = workers[0].place
    if place is None:
        raise RuntimeError("the first worker has no place")
    url = f"http://{host}{place.rendezvous}:1/bench"
    value = b"".join(struct.pack(ADDRESS, 2, 40_000, 0x0100007F, pair) for pair in range(count - 1))
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=READERS, force_close=True)
    ) as session:
        began = time.monotonic()
        await asyncio.gather(*(_request(session, "PUT", f"{url}/{n}", value) for n in range(count)))
        reads = (f"{url}/addresses_for.{n}.{count}" for n in range(count))
        await asyncio.gather(*(_request(session, "GET", read) for read in reads))
        return time.monotonic() - began


async def _request(
    session: aiohttp.ClientSession, method: str, url: str, body: bytes = b""
) -> None:
    async with session.request(method, url, data=body) as answer:
        answer.raise_for_status()
        await answer.read()


def measured(count: int, profile: str) -> Measured:
    """Measures one number of workers, with a new master."""
    context = get_context("spawn")
    mine, theirs = context.Pipe()
    with tempfile.TemporaryDirectory() as directory:
        arguments = (Path(directory), count, theirs, profile)
        process = context.Process(target=serve, args=arguments, daemon=True)
        process.start()
        try:
            address, token = mine.recv()
            return asyncio.run(measure(address, token, psutil.Process(process.pid), count))
        finally:
            mine.send("stop")
            process.join(60.0)
            process.kill()


def show(found: Sequence[Measured]) -> None:
    """Prints a table; each value is followed by its ratio to the line before."""
    print("workers | " + " | ".join(name for name, _, _ in COLUMNS))
    before: Measured | None = None
    for one in found:
        cells = []
        for _, form, value in COLUMNS:
            ratio = f" (x{value(one) / value(before):.1f})" if before and value(before) else ""
            cells.append(form.format(value(one)) + ratio)
        print(f"{one.workers:7d} | " + " | ".join(cells))
        before = one


def memory_rows(found: Sequence[Measured]) -> list[rows.Row]:
    """Returns the memory of masters, against the memory with the fewest workers."""
    least, *others = found
    return [
        rows.Row(
            what=f"memory of the launcher, {one.workers} simulated workers",
            against=f"that of {least.workers}",
            ratio=one.memory_mb / least.memory_mb,
        )
        for one in others
    ]


def main(_: Sequence[str]) -> None:
    """Measures all numbers of workers, and shows them."""
    counts = [int(count) for count in _WORKERS.value]
    found = []
    for count in counts:
        profile = _PROFILE.value if count == counts[-1] else ""
        found.append(measured(count, profile))
        print(f"{count} workers are measured", flush=True)
    rows.show(memory_rows(found))
    show(found)


if __name__ == "__main__":
    app.run(main)
