"""Checks whether TensorFlow sees the GPUs of this machine, and how collectives would reach them."""

from __future__ import annotations

from pathlib import Path

from hvd_elastic_keras.cli.checks.finding import OK, WARNING, Finding
from hvd_elastic_keras.common import env

CHECK = "GPUs"
DEVICES = Path("/proc/driver/nvidia/gpus")
"""NVIDIA's driver has a directory here for each GPU."""
OF_OTHERS = ("kfd", "dxg")
"""Devices of other drivers: AMD's, and the driver of Windows for the Linux inside it (WSL)."""
BY_GLOO = "collectives copy through the host's memory, by Gloo; docs/gpus.md has the way to NCCL"
BY_NCCL = "collectives by NCCL, of which it is not known what a killed worker does to the others"


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
        return Finding(OK, CHECK, found)
    if not present:
        return Finding(OK, CHECK, "none" + (", although Horovod is built with NCCL" * nccl))
    hidden = env.variables_named([env.VISIBLE_GPUS]).get(env.VISIBLE_GPUS)
    found = f"{present}, of which TensorFlow sees none"
    if hidden is None:
        remedy = "Install tensorflow[and-cuda] of the same version; until then workers use the CPU"
    else:
        found, remedy = f"{found} with {env.VISIBLE_GPUS}={hidden}", f"Unset {env.VISIBLE_GPUS}"
    return Finding(WARNING, CHECK, found, "that it sees them", remedy)
