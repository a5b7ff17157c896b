"""The program of a worker, for a job that runs a script.

    script_main.py script.py --flag_of_script=1
    script_main.py -m package.module --flag_of_module=1

It runs the script as Python does, with two additions. Random numbers are drawn from the
job's seed (`api/job_seed.py`), and `Model.fit` is elastic by itself (`api/unchanged_fit.py`). Both
wait until the script imports NumPy, TensorFlow or Keras, because a script may set environment
variables first that matter for these imports.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import sys
import threading
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

sys.path.pop(0)  # drop this file's folder, from which nothing is to be imported
sys.path.append(str(Path(__file__).resolve().parents[2]))  # the package need not be installed

from hvd_elastic_keras.api import job_seed
from hvd_elastic_keras.common import garbage, patches, versions
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.state import dataset_preparation
from hvd_elastic_keras.worker.session_of_process import refuse_what_is_not_caught


def main() -> None:
    """Runs the script or module that the command line names."""
    del sys.argv[0]
    as_module = sys.argv[0] == "-m"
    if as_module:
        del sys.argv[0]
    script = Path(sys.argv[0]).absolute()
    sys.path.insert(0, os.getcwd() if as_module else str(script.resolve().parent))
    environment = env.worker_environment()
    collect_as_before = garbage.collect_rarely()
    patches.after_import(["tensorflow"], collect_as_before)
    if environment is not None:
        refuse_what_is_not_caught(environment)
        dataset_preparation.install()
        if environment.options.seed is not None:
            job_seed.install(environment.options.seed)
        elastic_fit = environment.options.with_script().elastic_fit
        patches.after_import(["tensorflow", "keras"], lambda: _prepare(elastic_fit=elastic_fit))
    log = sys.stderr
    shown = ShownErrors(log)
    sys.stderr = shown
    _log_of_package(log)
    try:
        if as_module:
            _run_module(sys.argv[0])
        else:
            _run_file(script)
    except Exception as error:
        # As Python shows an error of a script: without the frames of this file.
        while error.__traceback__ and error.__traceback__.tb_frame.f_code.co_filename == __file__:
            error.__traceback__ = error.__traceback__.tb_next
        sys.stderr = log  # the launcher shows why a worker has failed
        sys.excepthook(type(error), error, error.__traceback__)
        raise SystemExit(1) from None
    finally:
        shown.end()
        sys.stderr = log


def _log_of_package(stream: TextIO) -> None:
    """Keeps the log of this package out of that of the script, whatever the script logs."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter(env.LOG_FORMAT))
    package = logging.getLogger(versions.PACKAGE)
    package.addHandler(handler)
    package.propagate = False


_ORDERS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""Orders to a terminal, for colours and movements: a launcher shows lines."""


class ShownErrors:
    """A script's `sys.stderr`, with `logging`, `warnings` and the bars of `tqdm`.

    A worker's stderr goes to its log only, with what TensorFlow and other libraries write there.
    Whole lines that Python code writes go to stdout instead, whose lines the launcher shows. If a
    line is redrawn, as a bar is, its last state counts.
    """

    def __init__(self, log: TextIO) -> None:
        self._log = log
        self._lock = threading.RLock()
        self._begun = ""

    def write(self, text: str) -> int:
        with self._lock:
            *lines, begun = (self._begun + text).split("\n")
            self._begun = _last_state(begun)
            for line in lines:
                shown = _ORDERS.sub("", _last_state(line)).rstrip()
                if shown or not line:  # no line of which only orders to a terminal are left
                    # Odd names of files cannot be printed, but can be written to stderr.
                    shown = shown.encode(errors="backslashreplace").decode()
                    print(shown, file=sys.__stdout__, flush=True)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def end(self) -> None:
        """Shows what has been written since the last whole line."""
        if self._begun:
            self.write("\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


def _last_state(line: str) -> str:
    """Returns what is left of a line after its carriage returns."""
    end = "\r" if line.endswith("\r") else ""
    return line.removesuffix("\r").rpartition("\r")[2] + end


def _run_file(script: Path) -> None:
    """Runs a file in a module `__main__` of its own."""
    module = _new_main(str(script))
    exec(compile(script.read_bytes(), str(script), "exec"), module.__dict__)


def _run_module(name: str) -> None:
    """Runs a module as `__main__`, or `__main__` of a package.

    `runpy.run_module` would take the module away before threads and functions of `atexit` end.
    """
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    if spec is None or spec.origin is None or spec.loader is None:
        raise ImportError(f"there is no module {name} to run")
    module = _new_main(spec.origin)
    module.__spec__, module.__package__, module.__loader__ = spec, spec.parent, spec.loader
    sys.argv[0] = spec.origin
    exec(spec.loader.get_code(spec.name), module.__dict__)  # type: ignore[attr-defined]


def _new_main(file: str) -> types.ModuleType:
    module = types.ModuleType("__main__")
    module.__file__ = file
    module.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = module
    return module


def _prepare(*, elastic_fit: bool) -> None:
    from hvd_elastic_keras.data.sources import cache_files

    cache_files.install()
    if elastic_fit:
        from hvd_elastic_keras.keras_internals import release

        release.check_in_script()
        from hvd_elastic_keras.api import unchanged_fit

        unchanged_fit.install()


if __name__ == "__main__":
    main()
