"""Checks a host: disks, memory, processors, GPUs, the limit of open files, and its addresses."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from hvd_elastic_keras.cli.checks.finding import OK, PROBLEM, WARNING, Finding
from hvd_elastic_keras.common import host_port
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.launchers import open_files
from hvd_elastic_keras.observe.console import counted
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.settings.job_config import JobConfig
from hvd_elastic_keras.worker import network

MIB, GIB = 2**20, 2**30
WORKER_BYTES = GIB
"""Memory of a small worker.

TensorFlow, Keras and Horovod take 0.5 GiB. The model, the data and two states are added to that.
"""
WITHOUT_MEMORY = "A worker for which there is no memory is killed by SIGKILL"
LITTLE_BYTES, LEAST_BYTES = GIB, 64 * MIB
"""Free space of a disk.

Below the first, checkpoints of a large model may not fit; below the second, no checkpoint may fit.
"""
SHARED_MEMORY = Path("/dev/shm")
LEAST_SHARED_BYTES = 64 * MIB
MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
PROCESSOR_LIMIT = Path("/sys/fs/cgroup/cpu.max")

CONNECT_TIMEOUT_S = 5.0

GPUS = "GPUs"
DEVICES = Path("/proc/driver/nvidia/gpus")
"""NVIDIA's driver has a directory here for each GPU."""
OF_OTHERS = ("kfd", "dxg")
"""Devices of other drivers: AMD's, and the driver of Windows for the Linux inside it (WSL)."""
BY_GLOO = "collectives copy through the host's memory, by Gloo; docs/gpus.md has the way to NCCL"
BY_NCCL = "collectives by NCCL, of which it is not known what a killed worker does to the others"


def machine() -> Iterator[Finding]:
    """Yields all findings about this host."""
    yield directory("disk, here", Path.cwd(), "--job_dir")
    yield directory("disk, temporary", Path(tempfile.gettempdir()), "TMPDIR")
    if SHARED_MEMORY.is_dir():
        yield shared_memory(shutil.disk_usage(SHARED_MEMORY).free)
    yield files_open(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    yield processors_and_memory(processors(), available_bytes())


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
        f"Start fewer: --num_workers={max(1, fit)}. {WITHOUT_MEMORY}",
    )


def too_little_memory_for(workers: int, available: int | None = None) -> list[str]:
    """Returns a warning if the memory of this host has no room for workers that start.

    Args:
      available: bytes; None: those that are available now.
    """
    available = available_bytes() if available is None else available
    fit = max(1, available // WORKER_BYTES)
    if workers <= fit:
        return []
    return [
        f"warning: {workers} workers start on this host, whose memory ({size(available)} free) "
        f"has room for about {fit} with a small model. {WITHOUT_MEMORY}: start fewer, such as "
        f"--num_workers={fit}"
    ]


def most_workers(gpus_of_each: int) -> int:
    """Returns how many workers this host has GPUs for or, without GPUs, processors."""
    gpus = gpus_here()
    return max(1, gpus // gpus_of_each) if gpus else processors()


def workers_of_host(gpus_of_each: int) -> int:
    """Returns how many workers this host has room for: as above, and free memory if no GPUs."""
    room = most_workers(gpus_of_each)
    return room if gpus_here() else max(1, min(room, available_bytes() // WORKER_BYTES))


def processors() -> int:
    """Returns how many processors this process may use; in a container at most its limit."""
    allowed = len(os.sched_getaffinity(0))
    try:
        quota, period = PROCESSOR_LIMIT.read_text().split()
    except (OSError, ValueError):
        return allowed
    return min(allowed, -(-int(quota) // int(period))) if quota.isdecimal() else allowed


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


def connections() -> Iterator[Finding]:
    """Checks the network interface, and ports on loopback and on the address for other hosts."""
    own, found = network.own_address(), network.addresses()
    yield interface(own, found)
    yield port("port", network.LOOPBACK, PROBLEM)
    if own != network.LOOPBACK:
        yield port("port for others", own, WARNING)


def interface(own: str, found: network.Addresses) -> Finding:
    """Checks the network interface by which other hosts would reach this one.

    Args:
      own: the address of this host that other hosts would be given.
      found: all addresses of this host.
    """
    if own == network.LOOPBACK:
        return Finding(
            WARNING,
            "network",
            f"only {network.shown(found) or 'no interface'}",
            "an address by which other hosts reach this one",
            "Nothing to do for workers on this host alone",
        )
    try:
        name = network.interface("", own, found)
    except ConfigurationError as error:
        return Finding(WARNING, "network", str(error))
    others = {n: a for n, a in found.items() if a and n != name and network.LOOPBACK not in a}
    more = f" (--bind, --network_interface choose: {network.shown(others)})" if others else ""
    return Finding(OK, "network", f"other hosts would reach this one at {own}, {name}{more}")


def port(check: str, address: str, level: str) -> Finding:
    """Checks whether a program can listen at an address of this host and get a connection.

    Args:
      level: level of the finding if it cannot.
    """
    try:
        with host_port.listening(address, 0) as server:
            server.settimeout(CONNECT_TIMEOUT_S)
            socket.create_connection(server.getsockname()[:2], CONNECT_TIMEOUT_S).close()
            server.accept()[0].close()
    except OSError as error:
        remedy = (
            f"See that the interface of {address} is up (ip addr) and that no firewall rule stops "
            "connections to ports that the system chooses (sysctl net.ipv4.ip_local_port_range)"
        )
        return Finding(level, check, f"{address}: {error}", "a connection to a free port", remedy)
    return Finding(OK, check, f"can listen at {address} and be connected to")


def gpus_of_machine(devices: Path = DEVICES) -> int:
    """Returns how many GPUs the driver knows; 0 without a driver."""
    return len(list(devices.iterdir())) if devices.is_dir() else 0


def gpus_here(drivers: Path = DEVICES, devices: Path = Path("/dev")) -> int | None:
    """Returns how many GPUs workers of this host can have; None if only TensorFlow can tell."""
    visible = env.visible_gpus()
    if any((devices / name).exists() for name in OF_OTHERS):
        return None if visible is None else len(visible)
    found = max(gpus_of_machine(drivers), len(list(devices.glob("nvidia[0-9]*"))))
    return found if visible is None else min(found, len(visible))


def gpus(present: int, seen: int, nccl: bool) -> Finding:
    """Compares the GPUs of this machine with those that TensorFlow can use.

    Args:
      present: number of GPUs that the driver knows.
      seen: number of GPUs that TensorFlow lists.
      nccl: whether Horovod is built with NCCL.

    >>> print(gpus(present=0, seen=0, nccl=False).line)
    ok       GPUs            none
    """
    if seen:
        found = f"TensorFlow sees {seen}; {BY_NCCL if nccl else BY_GLOO}"
        return Finding(OK, GPUS, found)
    if not present:
        return Finding(OK, GPUS, "none" + (", although Horovod is built with NCCL" * nccl))
    hidden = env.variables_named([env.VISIBLE_GPUS]).get(env.VISIBLE_GPUS)
    found = f"{present}, of which TensorFlow sees none"
    if hidden is None:
        remedy = "Install tensorflow[and-cuda] of the same version; until then workers use the CPU"
    else:
        found, remedy = f"{found} with {env.VISIBLE_GPUS}={hidden}", f"Unset {env.VISIBLE_GPUS}"
    return Finding(WARNING, GPUS, found, "that it sees them", remedy)
