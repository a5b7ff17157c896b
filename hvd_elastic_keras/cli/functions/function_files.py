"""Files by which a process and the workers that run its function exchange data.

Their directory is made for one call and removed after it. The directory and its files belong to one
user and are closed to everybody else. A pickle that another user could have written is not read.
"""

from __future__ import annotations

import dataclasses
import io
import linecache
import os
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType
from typing import Any, ClassVar

import cloudpickle

from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.errors import ConfigurationError

DIRECTORY_PREFIX = "function-"
CALL = "call.pkl"
RESULT = "result.pkl"
ERROR_SUFFIX = ".error.txt"


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """The settings that a worker needs before it can load the function.

    Attributes:
      path: Python's search path.
      sources: lines of each cell of a notebook, by the name that tracebacks use for the cell.
    """

    path: list[str]
    sources: Mapping[str, list[str]]

    @classmethod
    def of_process(cls) -> Surroundings:
        """Returns the surroundings of this process."""
        cached = ((name, linecache.getlines(name)) for name in list(linecache.cache))
        return cls(list(sys.path), {n: text for n, text in cached if text and not Path(n).exists()})

    def make_own(self) -> None:
        """Gives these surroundings to this process, a worker."""
        sys.path[:] = self.path
        for name, lines in self.sources.items():
            linecache.cache[name] = (sum(map(len, lines)), None, lines, name)


def _with_file_name(name: str, make: Callable[..., CodeType], *args: Any) -> CodeType:
    """Returns, in a worker, compiled code with the name of the file that it was compiled from."""
    return make(*args).replace(co_filename=name)


def _reduced_code(code: CodeType) -> tuple[Any, ...]:
    """Pickles compiled code such that tracebacks of a worker name the user's file and lines."""
    make, args = cloudpickle.CloudPickler.dispatch_table[CodeType](code)
    return _with_file_name, (code.co_filename, make, *args)


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]  # it has no types
    """A cloudpickle pickler that keeps file names.

    From cloudpickle 3.1.3 on, all code would get one file name, <dynamic-code>.
    """

    dispatch_table: ClassVar = ChainMap(
        {CodeType: _reduced_code}, cloudpickle.CloudPickler.dispatch_table
    )


def pickled_call(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bytes:
    """Pickles a function with its arguments and the surroundings of this process.

    Raises:
      ConfigurationError: the function or an argument cannot be pickled.
    """
    stream = io.BytesIO()
    pickle.dump(dataclasses.astuple(Surroundings.of_process()), stream)
    try:
        _Pickler(stream).dump((function, args, dict(kwargs)))
    except Exception as error:
        raise ConfigurationError(
            f"{name_of(function)} cannot be sent to workers: {type(error).__name__}: {error}. What "
            "it uses of its surroundings, and its arguments, are pickled: make what cannot be "
            "(models that are in use, datasets, files, locks) inside of the function."
        ) from error
    return stream.getvalue()


def load_call(directory: Path) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Loads the function with its arguments in a worker, after taking over the surroundings."""
    stream = io.BytesIO(_own_bytes(directory / CALL))
    Surroundings(*pickle.load(stream)).make_own()
    function, args, kwargs = pickle.load(stream)
    return function, args, kwargs


def write_result(directory: Path, value: Any) -> None:
    """Writes the value that the function has returned.

    Raises:
      ConfigurationError: the value cannot be pickled.
    """
    try:
        content = cloudpickle.dumps(value)
    except Exception as error:
        raise ConfigurationError(
            f"The function has returned a {type(value).__name__}, which cannot be sent back: "
            f"{type(error).__name__}: {error}. Return numbers, arrays, history.history or weights."
        ) from error
    files.write_secret(directory / RESULT, content)


def read_result(directory: Path) -> Any:
    """Reads the value that the function has returned on the root.

    Raises:
      FileNotFoundError: no worker has reached the end of the function.
    """
    return pickle.loads(_own_bytes(directory / RESULT))


def write_error(directory: Path, worker_id: str, text: str) -> None:
    """Writes the error with which the function has ended on a worker."""
    files.write_secret(directory / f"{worker_id}{ERROR_SUFFIX}", text.encode())


def newest_error(directory: Path) -> tuple[str, str] | None:
    """Returns the worker on which the function has failed last, and the text of the error."""
    found = sorted(directory.glob(f"*{ERROR_SUFFIX}"), key=lambda p: p.stat().st_mtime_ns)
    if not found:
        return None
    return found[-1].name.removesuffix(ERROR_SUFFIX), _own_bytes(found[-1]).decode()


def name_of(function: Callable[..., Any]) -> str:
    """Returns the name of a function, for people."""
    return str(getattr(function, "__name__", type(function).__name__))


def _own_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        about = os.fstat(file.fileno())
        if about.st_uid != os.getuid() or not files.is_secret(about):
            raise ConfigurationError(
                f"{path} may have been written by another user: it must belong to this one and be "
                "open to nobody else (mode 0600). It is not read."
            )
        return file.read()
