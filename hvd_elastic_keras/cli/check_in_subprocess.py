"""The check of a model module before any worker starts, as the launcher sees it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from hvd_elastic_keras.cli.job_request import JobRequest
from hvd_elastic_keras.common import env, files, protocol
from hvd_elastic_keras.common.error_text import error_in
from hvd_elastic_keras.common.errors import ModelModuleError
from hvd_elastic_keras.common.options import RunOptions
from hvd_elastic_keras.observe.console import Console
from hvd_elastic_keras.observe.event_log import EventLog
from hvd_elastic_keras.observe.notices import Notice

LONGEST_LINE = 2**24
"""Bytes of a line that the check may print."""


async def check_request(
    request: JobRequest, wanted: Path, console: Console
) -> tuple[JobRequest, dict[str, Any]]:
    """Checks the model that is asked for.

    Args:
      wanted: a file for the specification of the job; what the check says for `events.jsonl` goes
        to its directory.

    Returns the request with what has been found, and the description of the model.

    Raises:
      ConfigurationError: it cannot be trained, or not by so many workers.
    """
    if request.spec is None:
        raise RuntimeError("a script is not checked in this way")
    request.spec.save(wanted)
    found = await check_model(wanted, request.job_dir, console, request.options)
    request = dataclasses.replace(request, found_micro_batch_size=found["micro_batch_size"])
    request.check_workers_fit()
    return request, found


async def check_model(
    spec: Path, job_dir: Path, console: Console, options: RunOptions
) -> dict[str, Any]:
    """Loads a model in a process of its own, as a worker would, and returns its description.

    Meanwhile it shows what the process wants people to know.

    Args:
      spec: file with the specification of the job.
      job_dir: whose checkpoints the job would go on from.
      options: of the job.

    Raises:
      ModelModuleError: the model cannot be trained.
    """
    with tempfile.TemporaryDirectory(prefix=env.SCRATCH_PREFIX) as scratch:
        last, errors = await _output_of_check(spec, job_dir, console, scratch, options)
    try:
        answer = json.loads(last)
    except ValueError:
        tail = "\n".join(error_in(errors))
        raise ModelModuleError(
            f"The model module failed while it was checked; no worker has been started:\n{tail}"
        ) from None
    if "error" in answer:
        raise ModelModuleError(answer["error"])
    description: dict[str, Any] = answer["description"]
    return description


async def _output_of_check(
    spec: Path, job_dir: Path, console: Console, scratch: str, options: RunOptions
) -> tuple[str, str]:
    """The last line that the check prints, and its errors."""
    variables = {env.OPTIONS: options.encode(), "TMPDIR": scratch}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "hvd_elastic_keras.api.model_job",
        str(spec),
        str(job_dir),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env.child_environment(variables, {}),
        limit=LONGEST_LINE,
    )
    if process.stdout is None or process.stderr is None:
        raise RuntimeError("the check has no pipes")
    try:
        last, errors = await asyncio.gather(
            _last_line(process.stdout, spec.parent, console), process.stderr.read()
        )
        await process.wait()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    return last, errors.decode(errors="replace")


async def _last_line(output: asyncio.StreamReader, log_dir: Path, console: Console) -> str:
    """Shows and records the notices in what the check prints; returns its last other line."""
    last = ""
    async for line in output:
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
