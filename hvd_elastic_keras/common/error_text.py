"""Shortens errors for people: name and first lines, without the pages of advice after them.

Errors of the user's own code are explained from the first of the user's lines on.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from hvd_elastic_keras.common.errors import ModelModuleError

SHOWN_LOG_LINES = 20
MOST_FRAME_LINES = 8
MOST_MESSAGE_LINES = 10
MOST_CHARACTERS = 300
MORE = "  …"
BEGIN = "Traceback (most recent call last):"
OURS = "error: "
"""Start of the line that a script prints when it ends with an `ElasticError`."""
NOISE = ("I0000", "W0000", "E0000", "WARNING: All log messages")
"""Starts of lines that TensorFlow prints whenever it starts."""
MOST_LINES = 20


def in_one_line(error: BaseException) -> str:
    r"""Returns the name and first paragraph of an error in one line.

    >>> in_one_line(NotImplementedError("\nObject VAE was\ncreated.\n\nExample:\n\nclass A:"))
    'NotImplementedError: Object VAE was created.'
    """
    paragraph = str(error).strip().split("\n\n")[0]
    text = " ".join(paragraph.split())
    if len(text) > MOST_CHARACTERS:
        text = text[:MOST_CHARACTERS] + "…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def head_of(error: BaseException) -> list[str]:
    """Returns the name and first lines of an error."""
    lines = "".join(traceback.format_exception_only(error)).rstrip().splitlines()
    return lines if isinstance(error, SyntaxError) else _cut(lines)


def error_in(text: str) -> list[str]:
    """Finds the error that ended a process in its output. Returns where it happened, and what.

    The error is the last traceback (the innermost frames, the error's name and its first lines),
    or an error of this package, which has no traceback. If the output has neither, its last lines
    are returned.
    """
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(NOISE)]
    begins = [i for i, line in enumerate(lines) if line.startswith((BEGIN, OURS))]
    if not begins:
        return lines[-SHOWN_LOG_LINES:]
    if lines[begins[-1]].startswith(OURS):
        return _cut(lines[begins[-1] :])
    after = lines[begins[-1] + 1 :]
    number = next((i for i, line in enumerate(after) if not line.startswith(" ")), None)
    if number is None:
        return lines[-SHOWN_LOG_LINES:]
    frames, rest = after[:number], after[number:]
    if len(frames) > MOST_FRAME_LINES:
        frames = [MORE, *frames[-MOST_FRAME_LINES:]]
    return [BEGIN, *frames, *_cut(rest)]


def _cut(lines: Sequence[str]) -> list[str]:
    """Returns the first lines of a message, without code examples and stacks of operations."""
    first, *others = lines
    found = [first, *(line for line in others if line.strip() and not line.startswith(" "))]
    if len(found) > MOST_MESSAGE_LINES:
        return [*found[:MOST_MESSAGE_LINES], MORE]
    return found


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
