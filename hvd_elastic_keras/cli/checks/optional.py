"""Checks for programs and packages that only some jobs need."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator

from hvd_elastic_keras.cli.checks.finding import OK, Finding


def optional() -> Iterator[Finding]:
    """Checks each optional program and package. None of them is needed for a job on this host."""
    yield program("ssh", "openssh-client", "--hosts, --hostfile, --host_discovery_script")
    yield program("openssl", "openssl", "--tls")
    yield library("kubernetes", "--launcher=kubernetes")


def program(name: str, package: str, needed_by: str) -> Finding:
    """Checks for a program of the system.

    Args:
      package: the package of Debian and Ubuntu that holds the program.
    """
    path = shutil.which(name)
    if path:
        return Finding(OK, name, path)
    missing = f"not installed; only {needed_by} would need it"
    return Finding(OK, name, missing, remedy=f"sudo apt-get install {package}")


def library(name: str, needed_by: str) -> Finding:
    """Checks for a Python package."""
    if importlib.util.find_spec(name):
        return Finding(OK, name, "installed")
    missing = f"not installed; only {needed_by} would need it"
    return Finding(OK, name, missing, remedy=f"{sys.executable} -m pip install {name}")
