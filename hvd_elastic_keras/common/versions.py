"""Versions of what all workers of a job must have alike."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping

from hvd_elastic_keras._version import __version__
from hvd_elastic_keras.common.errors import ConfigurationError

PACKAGE = "hvd_elastic_keras"
COMPARED = ("tensorflow", "keras", "horovod")


def installed() -> dict[str, str]:
    """Versions of this process; what is not installed is left out."""
    found = {PACKAGE: __version__}
    for name in COMPARED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def check_versions(ours: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Compares what is installed here with what the job runs with.

    >>> check_versions({"keras": "3.15.1"}, {"keras": "3.15.1"})

    Raises:
      ConfigurationError: something is missing, or another version of it is installed.
    """
    wrong = [
        f"{name} {ours.get(name, 'missing')} (the job has {version})"
        for name, version in wanted.items()
        if ours.get(name) != version
    ]
    if wrong:
        raise ConfigurationError(
            f"This host has other versions than the job: {', '.join(wrong)}. Install the same "
            "ones, or use the job's container image."
        )
