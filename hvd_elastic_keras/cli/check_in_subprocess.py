"""The check of a model module in a process of its own, before any worker starts."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from hvd_elastic_keras.cli.job_request import JobRequest
from hvd_elastic_keras.common import files, protocol
from hvd_elastic_keras.common.errors import ModelModuleError, error_in
from hvd_elastic_keras.launchers import open_files
from hvd_elastic_keras.launchers.fork_server import ForkServer, ForkServerError, Request
from hvd_elastic_keras.observe.console import Console
from hvd_elastic_keras.observe.event_log import EventLog
from hvd_elastic_keras.observe.notices import Notice
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.settings.job_options import JobOptions

MODULE = "hvd_elastic_keras.api.model_job"
"""The module that the check runs."""
LONGEST_LINE = 2**24
"""Most bytes of one line that the check prints."""
ERROR_BYTES = 2**20
"""Bytes that are kept from the end of the check's standard error."""
Pipes: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamReader]
"""Standard output and standard error of a process."""


async def check_request(
    request: JobRequest,
    wanted: Path,
    console: Console,
    server: ForkServer | None = None,
    *,
    explains: bool = False,
) -> tuple[JobRequest, dict[str, Any]]:
    """Checks the requested model.

    Args:
      wanted: file to write the specification of the job to. Entries of the check for
        `events.jsonl` go to the directory of this file.
      server: starts the process of the check, if it is ready.
      explains: whether to trace the training step and to show how workers share it.

    Returns:
      The request with the micro-batch size that was found, and the description of the model.

    Raises:
      ConfigurationError: the model cannot be trained, or not by that number of workers.
    """
    if request.spec is None:
        raise RuntimeError("a script is not checked in this way")
    request.spec.save(wanted)
    arguments = [str(wanted), str(request.job_dir), *(["explain_step"] if explains else [])]
    found = await check_model(arguments, console, request.asked, server)
    request = dataclasses.replace(request, found_micro_batch_size=found["micro_batch_size"])
    request.check_workers_fit()
    return request, found


async def check_model(
    arguments: list[str],
    console: Console,
    options: JobOptions,
    server: ForkServer | None = None,
) -> dict[str, Any]:
    """Loads a model in a process of its own, as a worker would, and returns its description.

    Notices of the process are shown meanwhile.

    Args:
      arguments: those of `api/model_job.py`. The first is the file with the specification.
      options: options of the job.
      server: starts the process, if it is ready.

    Raises:
      ModelModuleError: the model cannot be trained.
    """
    with tempfile.TemporaryDirectory(prefix=env.SCRATCH_PREFIX) as scratch:
        variables = {env.OPTIONS: options.encode(), "TMPDIR": scratch}
        async with contextlib.AsyncExitStack() as stack:
            output, errors = await _started(stack, server, Request(MODULE, arguments, variables))
            last, said = await asyncio.gather(
                _last_line(output, Path(arguments[0]).parent, console), _end_of(errors)
            )
    try:
        answer = json.loads(last)
    except ValueError:
        tail = "\n".join(error_in(said.decode(errors="replace")))
        raise ModelModuleError(
            f"The model module failed while it was checked; no worker has been started:\n{tail}"
        ) from None
    if "error" in answer:
        raise ModelModuleError(answer["error"])
    description: dict[str, Any] = answer["description"]
    return description


async def _started(
    stack: contextlib.AsyncExitStack,
    server: ForkServer | None,
    request: Request,
) -> Pipes:
    """Starts a process that ends with the stack; the fork server is preferred if it is ready."""
    if server and await server.ready():
        with contextlib.suppress(ForkServerError):
            return await stack.enter_async_context(_forked(server, request))
    return await stack.enter_async_context(_spawned(request))


@contextlib.asynccontextmanager
async def _spawned(request: Request) -> AsyncIterator[Pipes]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", request.module, *request.arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env.child_environment(request.variables, {}),
        limit=LONGEST_LINE,
        start_new_session=True,  # signals of a terminal go to the launcher alone, which decides
    )
    if process.stdout is None or process.stderr is None:
        raise RuntimeError("the check has no pipes")
    try:
        yield process.stdout, process.stderr
    except BaseException:
        process.kill()
        raise
    finally:
        await process.wait()


@contextlib.asynccontextmanager
async def _forked(server: ForkServer, request: Request) -> AsyncIterator[Pipes]:
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        readers, sinks = [], []
        for _ in range(2):
            source, sink = os.pipe()
            sinks.append(sink)
            reader = asyncio.StreamReader(limit=LONGEST_LINE)
            connected = functools.partial(asyncio.StreamReaderProtocol, reader)
            pipe, _ = await loop.connect_read_pipe(connected, os.fdopen(source, "rb"))
            stack.callback(pipe.close)
            readers.append(reader)
        try:
            process = server.fork(request, *sinks)
        finally:
            for sink in sinks:
                os.close(sink)
        try:
            yield readers[0], readers[1]
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            raise
        finally:
            await asyncio.to_thread(open_files.until_ended, process)


async def _lines_of(output: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yields the lines; only the end of a line that is longer than `LONGEST_LINE`."""
    while True:
        with contextlib.suppress(ValueError):  # drops the part of a longer line read so far
            if not (line := await output.readline()):
                return
            yield line


async def _end_of(errors: asyncio.StreamReader) -> bytes:
    """Returns the last `ERROR_BYTES` bytes printed there."""
    end = b""
    while more := await errors.read(ERROR_BYTES):
        end = (end + more)[-ERROR_BYTES:]
    return end


async def _last_line(output: asyncio.StreamReader, log_dir: Path, console: Console) -> str:
    """Shows and records the notices that the check prints; returns its last other line."""
    last = ""
    async for line in _lines_of(output):
        text = line.decode(errors="replace").strip()
        if not text.startswith(protocol.NOTICE):
            last = text or last
            continue
        notice = msgspec.json.decode(text.removeprefix(protocol.NOTICE), type=Notice)
        console.info(notice.text)
        if notice.entry is not None:
            log = EventLog(log_dir / files.EVENTS)
            log.write(notice.entry)
            log.close()
    return last
