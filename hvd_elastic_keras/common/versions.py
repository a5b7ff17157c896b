"""Versions that are tested, and versions that all workers of a job must have in common."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import re
from collections.abc import Mapping
from pathlib import Path

from hvd_elastic_keras._version import __version__
from hvd_elastic_keras.common.errors import ConfigurationError

PACKAGE = "hvd_elastic_keras"
COMPARED = ("tensorflow", "keras", "horovod")
PATCHED = "hvdelastic"
"""Part of the version of a Horovod built by `scripts/build_horovod_wheel` (see BUILD.md)."""
CHECKOUT = Path(__file__).resolve().parents[2]
"""The directory that holds the scripts, if the package is used from its repository."""


@dataclasses.dataclass(frozen=True)
class Releases:
    """A range of releases by their first two numbers; both ends belong to it.

    >>> str(KERAS), KERAS.holds("3.15.1"), KERAS.holds("3.16.0")
    ('3.8 to 3.15', True, False)
    """

    oldest: tuple[int, int]
    newest: tuple[int, int]

    def holds(self, version: str) -> bool:
        """Whether a version belongs to the range."""
        numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
        return self.oldest <= numbers <= self.newest

    @property
    def requirement(self) -> str:
        """The range as a requirement for pip, as in `setup.py`."""
        (major, minor), (newest_major, newest_minor) = self.oldest, self.newest
        return f">={major}.{minor},<{newest_major}.{newest_minor + 1}"

    def __str__(self) -> str:
        return " to ".join(".".join(map(str, end)) for end in (self.oldest, self.newest))


# Tested versions; `setup.py` has the same.
PYTHON = Releases((3, 10), (3, 13))
TENSORFLOW = Releases((2, 18), (2, 21))
KERAS = Releases((3, 8), (3, 15))


def installed() -> dict[str, str]:
    """Returns the versions in this process, without packages that are not installed."""
    found = {PACKAGE: __version__}
    for name in COMPARED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def patch_revision(version: str) -> int:
    """Returns the revision of the project's changes in a version of Horovod; 0 without them.

    >>> patch_revision("0.28.1+hvdelastic9"), patch_revision("0.28.1")
    (9, 0)
    """
    revision = version.partition(PATCHED)[2]
    return int(revision) if revision.isdigit() else 0


def wanted_horovod() -> str:
    """Returns the version that `scripts/setup` installs; empty outside of a checkout."""
    path = CHECKOUT / "scripts" / "versions.env"
    if not path.is_file():
        return ""
    values = dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)
    return f"{values['HOROVOD_VERSION']}+{PATCHED}{values['HOROVOD_PATCH_REVISION']}"


def check_versions(ours: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Compares the versions installed here with the versions that the job runs with.

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
