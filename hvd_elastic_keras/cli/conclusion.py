"""How a job ends: signals that stop it, the messages to people, the exit code of the command."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable
from pathlib import Path

from hvd_elastic_keras.cli import job_directory
from hvd_elastic_keras.cli.control_job import how_it_ended
from hvd_elastic_keras.cli.job_request import JobRequest
from hvd_elastic_keras.common import files, goodput
from hvd_elastic_keras.common.errors import error_in, nonfinite_losses
from hvd_elastic_keras.master.controller import Controller
from hvd_elastic_keras.master.job_end import JobResult
from hvd_elastic_keras.observe import output, report_page, timeline
from hvd_elastic_keras.observe.console import Console, counted

EXIT_FAILED = 1
EXIT_CONFIGURATION = 2
EXIT_SIGNAL_BASE = 128
MOST_LOG_BYTES = 2**20
"""Bytes at the end of a log in which an error is searched."""


def conclude(console: Console, request: JobRequest, result: JobResult, signals: list[int]) -> int:
    """Says how a job has ended; returns the exit code of the command.

    Args:
      signals: the signals that have stopped the job. `ctl stop` counts as SIGTERM.
    """
    job_dir = job_directory.shown(request.job_dir)
    if result.refused:
        console.error(result.reason)
        return EXIT_FAILED if result.has_trained else EXIT_CONFIGURATION
    if result.spent_s:
        console.info(goodput.told(result.spent_s))
    several = result.training > 1
    if result.stopped:
        console.line(how_it_ended("stopped", result.step, result.training, result.reason))
        console.line(job_directory.to_continue(request.job_dir))
        return EXIT_SIGNAL_BASE + (signals[0] if signals else signal.SIGTERM)
    if not result.succeeded:
        _show_error(console, request.job_dir, result.failed_workers)
        console.line(f"the job failed: {result.reason}")
        console.line(f"logs: {job_dir}/{files.LOGS}")
        return EXIT_FAILED
    if request.spec and not request.spec.trains:
        where = request.spec.output or str(request.job_dir / files.RESULTS)
        console.line(f"finished; results: {job_directory.shown(Path(where))}")
        return 0
    if lost := _not_finite(request.job_dir):
        console.line(f"warning: the training has ended with {', '.join(lost)}")
    steps = counted(result.step, "step")
    length = f"{result.training} trainings, the last of {steps}" if several else steps
    console.line(f"finished after {length}; results: {job_dir}")
    return 0


def write_up(request: JobRequest, console: Console) -> None:
    """Writes the timeline and the report of a job that has ended, if they are wanted."""
    if request.output.timeline:
        _write_timeline(request.output.timeline, request.job_dir, console)
    if request.output.report:
        _write_report(request.job_dir, console)


def _write_timeline(target: Path, job_dir: Path, console: Console) -> None:
    """Writes the timeline at the end of a job; an error is only a warning."""
    try:
        rounds = timeline.write_merged(job_dir, target)
    except OSError as error:
        console.line(
            f"warning: the timeline cannot be written to {job_directory.shown(target)}: {error}"
        )
        return
    console.info(f"timeline of {counted(rounds, 'round')}: {job_directory.shown(target)}")


def _write_report(job_dir: Path, console: Console) -> None:
    """Writes the report at the end of a job; an error is only a warning."""
    target = job_dir / files.REPORT
    try:
        report_page.write(job_dir, target)
    except OSError as error:
        console.line(
            f"warning: the report cannot be written to {job_directory.shown(target)}: {error}"
        )
        return
    console.info(f"report: {job_directory.shown(target)}")


def _not_finite(job_dir: Path) -> list[str]:
    """Returns the losses of the last epoch that are no finite numbers, with their values."""
    content = files.read_json(job_dir / files.HISTORY)
    if not content or "history" not in content:  # a script may have trained in another way
        return []
    history = content["history"]
    return nonfinite_losses({name: values[-1] for name, values in history.items() if values})


def _show_error(console: Console, job_dir: Path, failed_workers: Iterable[str]) -> None:
    """Shows the error in the log of the first worker that failed, else of the last one."""
    for worker_id in failed_workers:
        tail = _error_of(job_dir, worker_id)
        if tail:
            console.line(f"from {job_directory.shown(job_dir)}/{files.LOGS}/{worker_id}.log:")
            for line in tail:
                console.quote(worker_id, line)
            return


def _error_of(job_dir: Path, worker_id: str) -> list[str]:
    """Returns the error of a failed worker, from its log."""
    return error_in(files.end_of(job_dir / files.LOGS / f"{worker_id}.log", MOST_LOG_BYTES))


def outlive_terminal(job_dir: Path, console: Console) -> None:
    """Keeps the job running at SIGHUP, as `nohup` does; the output continues in a file."""
    log = job_dir / files.LOGS / files.LAUNCHER_LOG
    output.go_on_in(log)
    loop = asyncio.get_running_loop()

    def hung_up() -> None:
        loop.add_signal_handler(signal.SIGHUP, lambda: None)  # a shell may send SIGHUP, too
        console.line(
            "got SIGHUP (a closed terminal or a lost connection): the job goes on; what cannot be "
            f"shown any more is in {job_directory.shown(log)}. To stop the job: kill {os.getpid()}"
        )

    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, hung_up)


def end_on_sigterm() -> None:
    """Lets SIGTERM cancel this task, as Ctrl-C does. All that the task has started ends with it."""
    if task := asyncio.current_task():
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


def stop_on_signals(controller: Controller) -> list[int]:
    """Lets SIGINT and SIGTERM stop the job; returns a list to which each signal is added."""
    received: list[int] = []

    def stop(number: signal.Signals) -> None:
        received.append(number)
        controller.stop("interrupted" if number == signal.SIGINT else f"got {number.name}")

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    return received
