"""Checkpoints that a script writes with `tf.train`: one worker writes, the others wait for it.

`Checkpoint.save`, `Checkpoint.write` and `CheckpointManager.save` return the same path on all
workers. They also do the same to the objects on all of them: the counter of saves goes up, and a
manager notes the new checkpoint and forgets those it has removed.

The objects of a worker that was started later are behind: it has not made the calls in the steps
before. It takes over the counter and the manager's list from the newest save, which the master has
noted with the worker's turn.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import os
from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

from hvd_elastic_keras.common import patches
from hvd_elastic_keras.keras_internals.tensorflow_names import checkpoint_management
from hvd_elastic_keras.state import one_writer
from hvd_elastic_keras.state.one_writer import WHY, BlocksOfThread
from hvd_elastic_keras.worker.turns import Turn

Owner: TypeAlias = "tf.train.Checkpoint | tf.train.CheckpointManager"
Call = Callable[..., Any]

FILE_FUNCTIONS = ("update_checkpoint_state_internal", "_delete_file_if_exists")
"""Functions of `checkpoint_management` that write or remove files after a save."""


_writing_nothing = BlocksOfThread()
"""Blocks in which a save does everything but write and remove files."""


@dataclasses.dataclass(frozen=True)
class _Saved:
    """A save, as far as workers have to know it that were not there."""

    path: str
    count: int
    """Value of the counter of saves after it."""

    @classmethod
    def read(cls, text: str) -> _Saved | None:
        """Returns what `text` tells; None if it tells nothing."""
        count, _, path = text.partition(" ")
        return cls(path, int(count)) if path else None

    @property
    def text(self) -> str:
        """The same as one text."""
        return f"{self.count} {self.path}"


def install() -> None:
    """Changes the saving of `tf.train.Checkpoint` and its manager."""
    checkpoint, manager = tf.train.Checkpoint, tf.train.CheckpointManager
    known: dict[str, _Saved] = {}
    patches.install(checkpoint, "save", _by_one_worker(checkpoint.save, known), WHY)
    patches.install(manager, "save", _by_one_worker(manager.save, known), WHY)
    patches.install(checkpoint, "write", _by_one_worker(checkpoint.write, None), WHY)
    patches.install(checkpoint, "_write", _unless_another_wrote(checkpoint._write), WHY)
    for name in FILE_FUNCTIONS:
        original = getattr(checkpoint_management, name)
        patches.install(checkpoint_management, name, _unless_another_did(original), WHY)


def _by_one_worker(original: Call, known: dict[str, _Saved] | None) -> Call:
    """Returns the method that takes the place of `original`.

    Args:
      known: the newest save that this process knows, by the name of the turn; None if the method
        does not count its calls.
    """
    signature = inspect.signature(original)
    turns_of = one_writer.turns_in_this_process()

    @functools.wraps(original)
    def save(self: Owner, *args: Any, **kwargs: Any) -> Any:
        turns = turns_of()
        try:
            arguments = signature.bind(self, *args, **kwargs)
        except TypeError:
            turns = None  # the original says what is wrong
        name = None if turns is None else _name_of(self, arguments)
        if turns is None or name is None:
            return original(self, *args, **kwargs)
        _write_before_return(arguments)
        call = functools.partial(original, *arguments.args, **arguments.kwargs)
        with turns.turn(name, f"saving {name}") as turn:
            if turn.is_mine:
                return _write(self, call, turn, name, known)
        return _follow(self, call, turn, name, known)

    return save


def _write(owner: Owner, call: Call, turn: Turn, name: str, known: dict[str, _Saved] | None) -> Any:
    """Makes the call for all workers."""
    newest = _Saved.read(turn.result)
    if known is not None and newest is not None and known.get(name) != newest:
        _catch_up(owner, newest)
    with one_writer.direct():
        path = call()
    if known is not None and path is not None:  # a manager saves nothing between its intervals
        known[name] = _Saved(path, int(_counter_of(owner)))
        turn.result = known[name].text
    return path


def _follow(
    owner: Owner, call: Call, turn: Turn, name: str, known: dict[str, _Saved] | None
) -> Any:
    """Makes the call after another worker has written."""
    with _writing_nothing.entered():
        path = call()
    written = _Saved.read(turn.result)
    if written is not None and path != written.path:
        _catch_up(owner, written)
        path = written.path
    if known is not None and path is not None:
        known[name] = _Saved(path, int(_counter_of(owner)))
    return path


def _name_of(owner: Owner, arguments: inspect.BoundArguments) -> str | None:
    """Returns the name of the turn: the directory of a manager, the prefix of a checkpoint."""
    if isinstance(owner, tf.train.CheckpointManager):
        return one_writer.shared_path(owner.directory)
    return one_writer.shared_path(arguments.arguments.get("file_prefix"))


def _write_before_return(arguments: inspect.BoundArguments) -> None:
    """Has a checkpoint written at once that is to be written beside the training.

    The others may go on only when it is there.
    """
    options = arguments.arguments.get("options")
    if options is not None and options.experimental_enable_async_checkpoint:
        options = copy.copy(options)
        options.experimental_enable_async_checkpoint = False
        arguments.arguments["options"] = options


def _counter_of(owner: Owner) -> Any:
    """Returns the variable that counts the saves."""
    checkpoint = owner.checkpoint if isinstance(owner, tf.train.CheckpointManager) else owner
    return checkpoint.save_counter


def _catch_up(owner: Owner, newest: _Saved) -> None:
    """Gives an object the state that it has in the workers that have made all calls."""
    _counter_of(owner).assign(newest.count)
    if not isinstance(owner, tf.train.CheckpointManager):
        return
    # A new manager reads what the last one has left in its directory.
    reread = tf.train.CheckpointManager(owner.checkpoint, owner.directory, max_to_keep=None)
    for name in ("_maybe_delete", "_latest_checkpoint", "_last_preserved_timestamp"):
        setattr(owner, name, getattr(reread, name))


def _unless_another_wrote(original: Call) -> Call:
    @functools.wraps(original)
    def write(self: tf.train.Checkpoint, file_prefix: Any, options: Any = None) -> Any:
        if not _writing_nothing.are_entered:
            return original(self, file_prefix, options)
        path = os.fspath(file_prefix)
        for callback in (options and options.experimental_write_callbacks) or ():
            callback(*[path][: len(inspect.signature(callback).parameters)])
        return path

    return write


def _unless_another_did(original: Call) -> Call:
    @functools.wraps(original)
    def change(*args: Any, **kwargs: Any) -> Any:
        return None if _writing_nothing.are_entered else original(*args, **kwargs)

    return change
