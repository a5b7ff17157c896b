"""How the launcher of a job answers signals."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from hvd_elastic_keras.cli.conclusion import shown
from hvd_elastic_keras.common import files
from hvd_elastic_keras.master.controller import Controller
from hvd_elastic_keras.observe import output
from hvd_elastic_keras.observe.console import Console


def outlive_terminal(job_dir: Path, console: Console) -> None:
    """Keeps the job running at SIGHUP, as `nohup` does; the output continues in a file."""
    log = job_dir / files.LOGS / files.LAUNCHER_LOG
    output.go_on_in(log)
    loop = asyncio.get_running_loop()

    def hung_up() -> None:
        loop.add_signal_handler(signal.SIGHUP, lambda: None)  # a shell may send SIGHUP, too
        console.line(
            "got SIGHUP (a closed terminal or a lost connection): the job goes on; what cannot be "
            f"shown any more is in {shown(log)}. To stop the job: kill {os.getpid()}"
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
