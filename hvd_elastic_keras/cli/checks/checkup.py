"""All checks of a host, in an order in which each check builds on the earlier ones."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from hvd_elastic_keras.cli.checks.connections import connections
from hvd_elastic_keras.cli.checks.finding import PROBLEM, WARNING, Finding, exit_code
from hvd_elastic_keras.cli.checks.gpus import gpus, gpus_of_machine
from hvd_elastic_keras.cli.checks.machine import machine
from hvd_elastic_keras.cli.checks.optional import optional
from hvd_elastic_keras.cli.checks.software import big_three, packages, python
from hvd_elastic_keras.cli.checks.two_workers import CHECK, two_workers

VERDICTS = ("Nothing stands in the way of a job.", "No job can run before the problems are mended.")


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
