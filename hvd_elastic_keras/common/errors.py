"""Errors a user may see: their classes, checks of values that raise them, and how they are shown.

Each message says what was received, what was expected and the fix. Errors of others are shortened
for people: name and first lines, without the pages of advice after them.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import sys
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hvd_elastic_keras.common import patches

SHOWN_LOG_LINES = 20
MOST_FRAME_LINES = 8
MOST_MESSAGE_LINES = 10
MOST_CHARACTERS = 300
MORE = "  …"
BEGIN = "Traceback (most recent call last):"
OURS = "error: "
"""Start of the line that a script prints when it ends with an `ElasticError`."""

IN_USER_CODE = "in user code:"
_FRAME = '  File "'
_OF_FRAME = re.compile(r" |[\^~]+$")
"""A line of a traceback below a file. Python may print marks without any spaces before them."""
_NOT_USERS = (
    "/site-packages/",
    "/lib/python3",
    "<frozen ",  # modules of Python's own
    "__autograph_generated_file",
    f"{Path(__file__).parents[1]}/",
)
"""Parts of the paths of files that are not the user's."""
NOISE = ("I0000", "W0000", "E0000", "WARNING: All log messages")
"""Starts of lines that TensorFlow prints whenever it starts."""

MOST_LINES = 20
ONE_LINE = "an uncaught ElasticError has no traceback"


class ElasticError(Exception):
    """Base of all errors of this package. Command lines print its text without a traceback."""


class ConfigurationError(ElasticError, ValueError):
    """A flag, a configuration value or an argument is wrong. Nothing has been started."""


class NonFiniteLossError(ConfigurationError):
    """A loss is NaN or infinite, and the job was asked to stop then. No worker is restarted."""


def nonfinite_losses(logs: Mapping[str, object]) -> list[str]:
    """Returns the losses among the logs that are no finite numbers, with their values.

    >>> nonfinite_losses({"accuracy": 0.5, "d_loss": float("inf"), "loss": float("nan")})
    ['d_loss inf', 'loss nan']
    """
    losses = {n: v for n, v in logs.items() if n.endswith("loss") and isinstance(v, float)}
    return [f"{name} {value}" for name, value in losses.items() if not math.isfinite(value)]


class ModelModuleError(ConfigurationError):
    """The user's model module does not keep its contract (see `api/model_module.py`)."""


class DataError(ConfigurationError):
    """The data have the wrong structure, or cannot be reproduced by another worker."""


class InputUnavailableError(ElasticError):
    """Data cannot be read at present. Another worker, or a later one, may be able to read them."""


class FunctionFailedError(ElasticError):
    """A function failed on the workers that ran it. The text has a worker's traceback."""


class MasterUnreachableError(ElasticError):
    """The master did not answer, or refused this worker."""


class CheckpointDamagedError(ConfigurationError):
    """A checkpoint differs from what was written. The checkpoint before it may be intact."""


class CheckpointNotWrittenError(ElasticError):
    """A checkpoint was not written: the disk is full or away. The training is not affected."""


class CheckpointMissingError(ElasticError):
    """A result that another worker must have saved is missing."""


class LedgerError(ElasticError):
    """A ledger of used examples is missing or damaged, or its epoch has not ended."""


class WeightsDifferError(ElasticError):
    """This worker's weights differ from the others' weights. It ends, and is replaced."""


class CollectiveFailedError(ElasticError):
    """A collective was interrupted, because a peer is gone or the round was closed.

    The worker has the state of its last finished step, and can enter the next round.
    """


class TrainingOverError(ElasticError):
    """The job has finished this training without this worker, which came too late for it.

    The result is in the job directory. The script goes on to its next part, as the scripts of the
    other workers have done.
    """


class WorkerLeavingError(ElasticError):
    """This worker has been told to leave and is not needed in any further round."""


class LeavingAloneError(WorkerLeavingError):
    """This worker leaves, and no master has heard of it."""


class ExpelledError(WorkerLeavingError):
    """The master has given this worker up. The job goes on without it."""


def require(condition: bool, name: str, value: object, expected: str) -> None:
    """Raises `ConfigurationError` unless the condition holds.

    Args:
      expected: the text that follows "expected a value" in the message.
    """
    if not condition:
        raise ConfigurationError(f"{name}={value} was given, expected a value {expected}.")


def require_whole_number(name: str, value: object, may_be_none: bool = False) -> None:
    """Raises `ConfigurationError` for anything but a whole number, or None if that is allowed."""
    good = isinstance(value, int) and not isinstance(value, bool)
    require(good or (may_be_none and value is None), name, repr(value), "that is a whole number")


def require_number(name: str, value: object) -> None:
    """Raises `ConfigurationError` for anything that is not a finite number."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    require(good, name, repr(value), "that is a number")


def require_bool(name: str, value: object) -> None:
    """Raises `ConfigurationError` for anything but True and False."""
    require(isinstance(value, bool), name, repr(value), "that is True or False")


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
    number = next((i for i, line in enumerate(after) if not _OF_FRAME.match(line)), None)
    if number is None:
        return lines[-SHOWN_LOG_LINES:]
    return [BEGIN, *_frames_of_user(after[:number]), *_cut(after[number:])]


def _frames_of_user(lines: Sequence[str]) -> list[str]:
    """Returns the lines of a traceback that are about the user's files; all if there are none.

    If there are many lines, it returns the last ones.
    """
    frames: list[list[str]] = []
    for line in lines:
        if line.startswith(_FRAME) or not frames:
            frames.append([])
        frames[-1].append(line)
    of_user = [frame for frame in frames if not any(part in frame[0] for part in _NOT_USERS)]
    found = [line for frame in of_user or frames for line in frame]
    if len(found) > MOST_FRAME_LINES:
        found = [MORE, *found[-MOST_FRAME_LINES:]]
    return [*found, MORE] if of_user and of_user[-1] is not frames[-1] else found


def _cut(lines: Sequence[str]) -> list[str]:
    """Returns the first lines of a message, without code examples and stacks of operations."""
    first, *others = lines
    if first.endswith(IN_USER_CODE):  # AutoGraph indents its whole message; the error is its end
        own = list(itertools.takewhile(lambda line: line.startswith(" "), others))
        return [first, *own[-MOST_MESSAGE_LINES:]]
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


def is_of_user(error: BaseException) -> bool:
    """Whether the user's own code has raised the error, and no library that it has called."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and is_users_file(frames[-1].filename)


def is_users_file(path: str) -> bool:
    """Whether a file with code is the user's own, and of no library."""
    return not any(part in path for part in _NOT_USERS)


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


def show_in_one_line() -> None:
    """Changes how an uncaught `ElasticError` looks. Other errors look as before."""
    if patches.is_installed(ONE_LINE):
        return
    before = sys.excepthook

    def show(
        kind: type[BaseException], error: BaseException, traceback: types.TracebackType | None
    ) -> None:
        if isinstance(error, ElasticError):
            print(f"error: {error}", file=sys.stderr)
        else:
            before(kind, error, traceback)

    patches.install(sys, "excepthook", show, ONE_LINE)
