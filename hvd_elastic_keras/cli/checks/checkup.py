"""All checks of a host, in an order in which each check builds on the earlier ones.

The last one is a tiny job: whether two workers on this host can sum two numbers with Horovod.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

from aiohttp import web

from hvd_elastic_keras.cli.checks.finding import OK, PROBLEM, WARNING, Finding, exit_code
from hvd_elastic_keras.cli.checks.machine import connections, gpus, gpus_of_machine, machine
from hvd_elastic_keras.cli.checks.software import (
    big_three,
    json_lines,
    optional,
    packages,
    python,
    set_up,
)
from hvd_elastic_keras.common.errors import ConfigurationError, error_in
from hvd_elastic_keras.master.http.rendezvous import RendezvousStore
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.worker import network

VERDICTS = ("Nothing stands in the way of a job.", "No job can run before the problems are mended.")

PROBE = "hvd_elastic_keras.worker.probes.pair"
SIZE = 2
EXPECTED_SUM = 3.0
"""The sum of 1 and 2, the numbers of the two workers."""
CHECK = "two workers"
TIMEOUT_S = 300.0
EXPECTED = f"the sum {EXPECTED_SUM:g} on both"
REMEDY = set_up("Build Horovod for this TensorFlow with scripts/build_horovod_wheel (BUILD.md)")
Answer = dict[str, Any]


def findings() -> Iterator[Finding]:
    """Yields the findings one after the other, because some checks take seconds."""
    yield python()
    yield packages()
    usable, imported = True, dict[str, Any]()
    for finding in big_three(imported=imported):
        usable = usable and finding.level != PROBLEM
        yield finding
    if usable:
        yield gpus(gpus_of_machine(), imported["gpus"], imported["nccl"])
        yield two_workers()
    else:
        yield Finding(WARNING, CHECK, "not tried, since they could not be imported")
    yield from connections()
    yield from machine()
    yield from optional()


def examine(as_json: bool = False) -> int:
    """Prints the findings, and returns the exit code."""
    found = []
    for finding in findings():
        found.append(finding)
        if not as_json:
            print(finding.line, flush=True)
    code = exit_code(found)
    if as_json:
        print(json.dumps([dataclasses.asdict(finding) for finding in found], indent=2))
    else:
        print(VERDICTS[code])
    return code


def two_workers(interface: str = "", timeout_s: float = TIMEOUT_S) -> Finding:
    """Starts two processes that do what workers do in their first round.

    Args:
      interface: network interface that they use; empty: the one that a job on this host uses.
      timeout_s: seconds after which they are killed.
    """
    try:
        answers = asyncio.run(_meet(interface, timeout_s))
    except asyncio.TimeoutError:
        found = f"have not met within {timeout_s:g} s"
        remedy = f"Look for a firewall on the loopback interface, or a busy machine. {REMEDY}"
        return Finding(PROBLEM, CHECK, found, EXPECTED, remedy)
    except (OSError, ConfigurationError) as error:
        return Finding(PROBLEM, CHECK, f"cannot be started: {error}", EXPECTED)
    return _judged(answers)


def _judged(answers: list[Answer]) -> Finding:
    sums = [answer.get("sum") for answer in answers]
    if sums == [EXPECTED_SUM] * SIZE:
        memory = max(answer["memory"] for answer in answers) / 2**30
        found = f"an allreduce on loopback gives the right sum; {memory:.1f} GiB of memory each"
        return Finding(OK, CHECK, found)
    errors = dict.fromkeys(str(answer["error"]) for answer in answers if "error" in answer)
    found = "; ".join(errors) or f"an allreduce gives {sums}"
    return Finding(PROBLEM, CHECK, found, EXPECTED, REMEDY)


async def _meet(interface: str, timeout_s: float) -> list[Answer]:
    async with _store() as rendezvous:
        address = rendezvous.partition("/")[0]
        chosen = interface or network.way_to(address).interface
        workers = [await _start(rank, chosen, rendezvous) for rank in range(SIZE)]
        try:
            asked = asyncio.gather(*(_answer(worker) for worker in workers))
            return list(await asyncio.wait_for(asked, timeout_s))
        finally:
            for worker in workers:
                with contextlib.suppress(ProcessLookupError):
                    worker.kill()
                await worker.wait()


@contextlib.asynccontextmanager
async def _store() -> AsyncIterator[str]:
    """Runs a rendezvous store, as a master does; yields a value for `Assignment.rendezvous`."""
    store, secret = RendezvousStore(), secrets.token_hex(32)

    async def answer(request: web.Request) -> web.Response:
        return await store.answer(request, 1)

    app = web.Application()
    # Horovod appends a port to the address, which here is the end of a path.
    app.router.add_route("*", f"/{secret}/round1:{{port}}/{{key:.+}}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
    await runner.setup()
    try:
        await web.TCPSite(runner, network.LOOPBACK, 0).start()
        yield f"{network.LOOPBACK}:{runner.addresses[0][1]}/{secret}/round1"
    finally:
        store.close(1)
        await runner.cleanup()


async def _start(rank: int, interface: str, rendezvous: str) -> asyncio.subprocess.Process:
    arguments = ["-W", "ignore", "-m", PROBE, str(rank), str(SIZE), interface, rendezvous]
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env.child_environment({}, {}),
    )


async def _answer(worker: asyncio.subprocess.Process) -> Answer:
    output, errors = await worker.communicate()
    answers = json_lines(output.decode(errors="replace"))
    if answers:
        return answers[-1]
    if worker.returncode is not None and worker.returncode < 0:
        return {"error": f"a worker was killed by {signal.Signals(-worker.returncode).name}"}
    return {"error": " ".join(error_in(errors.decode(errors="replace"))[-1:])}
