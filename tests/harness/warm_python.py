"""Python processes that need not import TensorFlow: they are forked from one that has done so.

Only for tests that are not about the start of a process.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, NoReturn

REPOSITORY = Path(__file__).resolve().parents[2]
LIMIT_S = 100.0
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["horovod.tensorflow", "keras", "tensorflow"])


def process_of(function: Callable[..., object], log: Path, *arguments: object) -> ForkServerProcess:
    """Returns a process, not yet started, that calls a function and ends as a program does.

    Args:
      function: a function of a module.
      log: file for the output of the process.
    """
    # A test that has used Horovod in this process leaves HOROVOD_SIZE=1 in the environment.
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("HOROVOD_")}
    return CONTEXT.Process(target=_call, args=(function, log, inherited, arguments))


def run(*arguments: object, log: Path, timeout_s: float = LIMIT_S) -> str:
    """Runs `python ARGUMENTS…` in the checkout; returns its output. The run must succeed."""
    process = process_of(_program, log, [str(argument) for argument in arguments])
    process.start()
    process.join(timeout_s)
    code = process.exitcode
    process.kill()
    assert code == 0, f"{arguments} ended with {code}:\n{log.read_text()}"
    return log.read_text()


def _call(
    function: Callable[..., object], log: Path, environment: dict[str, str], arguments: Any
) -> NoReturn:
    with log.open("ab") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    os.environ.clear()
    os.environ.update(environment)
    end_as_program(function, *arguments)


def end_as_program(function: Callable[..., object], *arguments: Any) -> NoReturn:
    """Calls a function in a fork, and ends the process with the exit code of such a program."""
    code = 0
    try:
        function(*arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    # Finalize the interpreter, which `multiprocessing` leaves out: it runs exit handlers.
    ctypes.pythonapi.Py_Exit(code)
    raise AssertionError("the process has ended")


def _program(arguments: Sequence[str]) -> None:
    os.chdir(REPOSITORY)
    first, *rest = arguments
    if first == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    elif first == "-m":
        sys.argv = [rest[0], *rest[1:]]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *rest]
        sys.path.insert(0, str(Path(first).parent))
        runpy.run_path(first, run_name="__main__")
