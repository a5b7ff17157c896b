"""Checks the disks, the memory, the processors, and the limit of open files."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from hvd_elastic_keras.cli.checks.finding import OK, PROBLEM, WARNING, Finding
from hvd_elastic_keras.common.config import JobConfig
from hvd_elastic_keras.launchers import open_files
from hvd_elastic_keras.observe.console import counted

MIB, GIB = 2**20, 2**30
WORKER_BYTES = GIB
"""Memory of a small worker.

TensorFlow, Keras and Horovod take 0.5 GiB. The model, the data and two states are added to that.
"""
LITTLE_BYTES, LEAST_BYTES = GIB, 64 * MIB
"""Free space of a disk.

Below the first, checkpoints of a large model may not fit; below the second, no checkpoint may fit.
"""
SHARED_MEMORY = Path("/dev/shm")
LEAST_SHARED_BYTES = 64 * MIB
MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")


def machine() -> Iterator[Finding]:
    """Yields all findings about this host."""
    yield directory("disk, here", Path.cwd(), "--job_dir")
    yield directory("disk, temporary", Path(tempfile.gettempdir()), "TMPDIR")
    if SHARED_MEMORY.is_dir():
        yield shared_memory(shutil.disk_usage(SHARED_MEMORY).free)
    yield files_open(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    yield processors_and_memory(len(os.sched_getaffinity(0)), available_bytes())


def directory(check: str, path: Path, setting: str) -> Finding:
    """Checks whether a directory can be written, and has room.

    Args:
      setting: flag or variable that names another directory.
    """
    try:
        with tempfile.TemporaryFile(dir=path):
            pass
        free = shutil.disk_usage(path).free
    except OSError as error:
        remedy = f"Give another directory with {setting}"
        return Finding(PROBLEM, check, f"{path}: {error.strerror}", "one to write to", remedy)
    return room(check, str(path), free, setting)


def room(check: str, place: str, free: int, setting: str) -> Finding:
    """Judges the free space of a disk, in bytes."""
    found = f"{place}: {size(free)} free"
    remedy = f"Free some space, or name another disk with {setting}"
    if free < LEAST_BYTES:
        return Finding(PROBLEM, check, found, f"at least {size(LEAST_BYTES)}", remedy)
    if free < LITTLE_BYTES:
        return Finding(WARNING, check, found, f"{size(LITTLE_BYTES)} for checkpoints", remedy)
    return Finding(OK, check, found)


def shared_memory(free: int) -> Finding:
    """Judges the free space of /dev/shm, in bytes."""
    found = f"{SHARED_MEMORY}: {size(free)} free"
    if free >= LEAST_SHARED_BYTES:
        return Finding(OK, "shared memory", found)
    return Finding(
        WARNING,
        "shared memory",
        found,
        f"{size(LEAST_SHARED_BYTES)} for NCCL, and for data loaders with processes of their own",
        "In a container: docker run --shm-size=1g, or an emptyDir with medium: Memory",
    )


def files_open(hard_limit: int) -> Finding:
    """Judges the hard limit of open files. The launcher raises its soft limit up to it."""
    if hard_limit == resource.RLIM_INFINITY:
        return Finding(OK, "open files", "any number")
    workers = open_files.most_workers(hard_limit)
    found = f"{hard_limit:,} (ulimit -Hn), enough for {workers:,} workers"
    wanted = JobConfig().max_workers
    if workers >= wanted:
        return Finding(OK, "open files", found)
    remedy = "Raise it: `ulimit -Hn` as root, /etc/security/limits.conf, LimitNOFILE of a service"
    expected = f"{open_files.needed_for(wanted):,} for {wanted} workers"
    return Finding(WARNING, "open files", found, expected, remedy)


def processors_and_memory(processors: int, available: int) -> Finding:
    """Judges how many workers fit into the memory (bytes), and whether each processor gets one."""
    fit = available // WORKER_BYTES
    found = f"{counted(processors, 'processor')}, {size(available)} of memory available"
    if fit >= min(processors, JobConfig().num_workers):
        return Finding(OK, "workers", f"{found}: room for about {counted(fit, 'small worker')}")
    return Finding(
        WARNING,
        "workers",
        found,
        f"about {size(WORKER_BYTES)} for each worker with a small model",
        f"Start fewer: --num_workers={max(1, fit)}. A worker for which there is no memory is "
        "killed by SIGKILL",
    )


def available_bytes() -> int:
    """Returns the memory for new processes; in a container at most its limit."""
    available = int(psutil.virtual_memory().available)
    try:
        limit = MEMORY_LIMIT.read_text().strip()
    except OSError:
        return available
    return min(available, int(limit)) if limit.isdecimal() else available


def size(count: int) -> str:
    """Formats a number of bytes for people.

    >>> size(2**26), size(3 * 2**29)
    ('64 MiB', '1.5 GiB')
    """
    return f"{count / GIB:,.1f} GiB" if count >= GIB else f"{count // MIB} MiB"
