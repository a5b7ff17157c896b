"""Command line that breaks a running job on purpose (`python -m hvd_elastic_keras.chaos --help`).

python -m hvd_elastic_keras.chaos --job_dir=DIR --plan=PLAN.json
python -m hvd_elastic_keras.chaos --job_dir=DIR --random --seed=7 --faults=20 --every_s=10
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec

from hvd_elastic_keras.chaos.breaker import Breaker
from hvd_elastic_keras.chaos.outcome import Report, report_table
from hvd_elastic_keras.chaos.plan import DRAWN, Plan, drawn
from hvd_elastic_keras.cli.command_line import parser_of
from hvd_elastic_keras.common import files, messages
from hvd_elastic_keras.common.errors import ConfigurationError, ElasticError

INTERRUPTED = 130


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = parser_of("hvd_elastic_keras.chaos", __doc__ or "", f"\na plan:\n{Plan.examples}")
    top.add_argument("--job_dir", type=Path, help="directory of a job that runs on this machine")
    top.add_argument("--plan", type=Path, help="JSON file that says which faults happen when")
    top.add_argument("--random", action="store_true", help="draw the faults in place of a plan")
    top.add_argument("--seed", type=int, default=0, help="the same seed draws the same faults")
    top.add_argument("--faults", type=int, default=10, help="with --random: how many (10)")
    text = "with --random: seconds between two faults, on average (10)"
    top.add_argument("--every_s", type=float, default=10.0, help=text)
    text = f"with --random: of which kinds ({','.join(DRAWN)})"
    top.add_argument("--kinds", default=",".join(DRAWN), help=text)
    text = "end after so many seconds, whatever has happened (3600)"
    top.add_argument("--timeout_s", type=float, default=3600.0, help=text)
    top.add_argument("--report", type=Path, help="also write the report to this file, as JSON")
    return top


def plan_of(given: argparse.Namespace) -> Plan:
    """The faults that are asked for.

    Raises:
      ConfigurationError: they make no sense.
      ProtocolError: the file is not of the right form.
    """
    if given.random == (given.plan is not None):
        raise ConfigurationError("Give one of --plan=FILE and --random.")
    plan = _drawn(given) if given.random else _read(given.plan)
    plan.check()
    return plan


def _drawn(given: argparse.Namespace) -> Plan:
    if given.faults < 1 or not given.every_s > 0:
        raise ConfigurationError(
            f"--faults={given.faults} --every_s={given.every_s:g} was given, expected at least 1 "
            "fault and more than 0 seconds."
        )
    return drawn(given.seed, given.faults, given.every_s, given.kinds.split(","))


def _read(path: Path) -> Plan:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"--plan={path} cannot be read: {error.strerror}. Give a file such as {Plan.examples}"
        ) from error
    return messages.decode(content, Plan)


def _check_report(path: Path) -> None:
    """Raises `ConfigurationError` unless the report can be written at the end."""
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigurationError(
            f"--report={path} cannot be written. Give a file in a directory that exists."
        )


def _break(job_dir: Path, plan: Plan, timeout_s: float) -> tuple[Report, bool]:
    """The report, and whether it was interrupted."""
    with Breaker(job_dir, plan, print) as breaker:
        try:
            breaker.run(timeout_s)
        except KeyboardInterrupt:
            return breaker.report(), True
        return breaker.report(), False


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> None:
    """Breaks a job; exits with 0 if all faults have happened, with 1 if some have not."""
    top = parser()
    given = top.parse_args(arguments)
    if given.job_dir is None:
        top.error("--job_dir is missing. Give the directory of a running job")
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        plan = plan_of(given)
        if given.report:
            _check_report(given.report)
        report, interrupted = _break(given.job_dir.resolve(), plan, given.timeout_s)
        print(report_table(report.outcomes))
        if given.report:
            files.write_json(given.report, msgspec.to_builtins(report))
    except ElasticError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    if interrupted:
        sys.exit(INTERRUPTED)
    sys.exit(0 if all(outcome.fired for outcome in report.outcomes) else 1)


if __name__ == "__main__":
    main()
