"""Explains errors of the user's own code to people, from the first of the user's lines on."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path

from hvd_elastic_keras.common.error_text import head_of
from hvd_elastic_keras.common.errors import ModelModuleError

MOST_LINES = 20


@contextlib.contextmanager
def exit_is_an_error(module: str) -> Iterator[None]:
    """Turns an exit of the program, while a worker loads a model module, into an error.

    Otherwise the worker would end as if it had done its work.

    Raises:
      ModelModuleError: the module has ended the program.
    """
    try:
        yield
    except SystemExit as error:
        raise ModelModuleError(
            f"The model module {module} failed in a worker:\n{explain(error, None)}"
        ) from error


def explain(error: BaseException, file: Path | None) -> str:
    """Returns what went wrong and where in the user's file, without our own code before it.

    Args:
      file: the file of the user's module; None if it is not known.
    """
    if isinstance(error, SystemExit):
        reason = f": {error.code}" if isinstance(error.code, str) else f" (exit code {error.code})"
        return f"It ended the program{reason}. A module is imported; it must not exit."
    frames = traceback.extract_tb(error.__traceback__)
    first = next((i for i, f in enumerate(frames) if file and Path(f.filename) == file), None)
    if first is None:
        return "\n".join(head_of(error))
    lines = "".join(traceback.format_list(frames[first:])).splitlines()
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES // 2], "  …", *lines[-MOST_LINES // 2 :]]
    return "\n".join([*lines, *head_of(error)])
