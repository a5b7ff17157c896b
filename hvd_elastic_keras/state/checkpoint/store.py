"""Checkpoints on disk: a TensorFlow checkpoint of the variables, and a versioned JSON file.

    <job_dir>/checkpoints/step-00000120/state.json
    <job_dir>/checkpoints/step-00000120/state.bytes      arrays and bytes of that state
    <job_dir>/checkpoints/step-00000120/variables.index, variables.data-…
    <job_dir>/checkpoints/step-00000120/manifest.json    sizes and checksums of these

A checkpoint is written under a temporary name, and renamed when all of it has reached the disk. If
it is damaged afterwards, the manifest shows that, and it is set aside as `damaged-step-…`.

`BackgroundWriter` writes checkpoints in a thread, so that the training waits at most for a copy in
memory.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias

import tensorflow as tf

from hvd_elastic_keras.common.errors import (
    CheckpointDamagedError,
    CheckpointNotWrittenError,
    ConfigurationError,
)
from hvd_elastic_keras.settings.options import KEEP_CHECKPOINTS
from hvd_elastic_keras.state import one_writer, packing
from hvd_elastic_keras.state.checkpoint import directories, manifest, ownership
from hvd_elastic_keras.state.checkpoint.ownership import Owner
from hvd_elastic_keras.state.checkpoint.places import Place

FORMAT_VERSION = 3
Values: TypeAlias = "tf.Variable | tf.Tensor"
Term: TypeAlias = "Callable[[], int] | None"
Found: TypeAlias = tuple[Place, dict[str, Any]]
PREFIX = "variables"
STATE = "state.json"
BYTES = "state.bytes"
VALUE = "variables/{}/.ATTRIBUTES/VARIABLE_VALUE"
"""TensorFlow's name for the value of a variable of a list that is tracked as `variables`."""


class CheckpointStore:
    """The checkpoints of one job.

    Args:
      keep: number of newest checkpoints to keep.
      term: returns a number that grows with every start of the job, so that a late checkpoint of an
        earlier start counts as older. If None, every writer belongs to the newest start.
      before_publishing: called when a checkpoint is on disk, before it gets its name.
      owner: the job that has claimed the directory. If None, claims of other jobs are not checked.
    """

    def __init__(
        self,
        directory: Place,
        keep: int = KEEP_CHECKPOINTS,
        term: Term = None,
        *,
        before_publishing: Callable[[], None] = lambda: None,
        owner: Owner | None = None,
    ) -> None:
        self._owner = owner
        self._before_publishing = before_publishing
        self._directory = directory
        self._keep = keep
        self._term = term

    def save(self, step: int, variables: Sequence[Values], state: dict[str, Any]) -> Place:
        """Writes a checkpoint of optimizer step `step` and removes old ones.

        `variables` may be copies of the values; then the variables can change meanwhile.

        Raises:
          CheckpointNotWrittenError: the disk is full or away, a later start of the job has written
            there, or another job has claimed the directory. All is as it was before.
        """
        term = self._checked_term()
        final = self._directory / directories.name_of(step)
        try:
            with directories.being_written(final) as temporary:
                _write(temporary, step, variables, state, term)
                self._before_publishing()
                self._checked_term()
                directories.put_in_place(temporary, final)
        except (OSError, tf.errors.OpError) as error:
            raise CheckpointNotWrittenError(
                f"The checkpoint {final} could not be written: {_first_line(error)}"
            ) from error
        for old in directories.by_age(self._directory)[: -self._keep]:
            directories.remove_tree(old)
        return final

    def remove_unfinished(self) -> None:
        """Removes checkpoints that killed processes left unfinished. None may write meanwhile."""
        directories.remove_unfinished(self._directory)

    def newest(self, warn: Callable[[str], None] | None = None) -> Found | None:
        """Returns the newest checkpoint that is whole, with its state except for the variables.

        Args:
          warn: called with a line about each damaged checkpoint, which is set aside. If None,
            damaged checkpoints stay, for a later call with `warn`.

        Raises:
          CheckpointDamagedError: there are checkpoints, but none is whole.
          ConfigurationError: the newest one is of another format version.
        """
        damaged: dict[Place, CheckpointDamagedError] = {}
        for path in reversed(directories.by_age(self._directory)):
            try:
                found = path, self.load_state(path)
            except CheckpointDamagedError as error:
                damaged[path] = error
                continue
            if warn is not None:
                for bad, why in damaged.items():
                    directories.set_aside(bad)
                    warn(f"warning: {why} The one before it, {path.name}, is used.")
            return found
        for newest in damaged.values():
            raise CheckpointDamagedError(
                f"{newest} None before it is whole. Remove {self._directory} to train from the "
                "beginning, or use another job_dir."
            )
        return None

    def load_state(self, path: Place) -> dict[str, Any]:
        """Reads the state except for the variables, and checks that their files are whole.

        Raises:
          CheckpointDamagedError: the checkpoint is not what was written.
          ConfigurationError: the checkpoint is of another format version.
        """
        try:
            found = manifest.read(path)
            if found.version != FORMAT_VERSION:
                raise ConfigurationError(
                    f"The checkpoint {path} has format version {found.version}, expected "
                    f"{FORMAT_VERSION}. Use the release that wrote it, or another job_dir."
                )
            text, data = (manifest.read_file(path, found, name) for name in (STATE, BYTES))
            content: dict[str, Any] = packing.loads(text, data)
            if not isinstance(content.get("variables"), list):
                raise ValueError(f"{STATE} does not say which variables it is of")
            manifest.check_others(path, found, (STATE, BYTES))
        except ConfigurationError:
            raise
        except (OSError, ValueError, AttributeError) as error:
            raise _damaged(path, str(error)) from error
        return content

    def check_variables(
        self, path: Place, state: dict[str, Any], variables: Sequence[tf.Variable]
    ) -> None:
        """Compares the variables with the saved ones; `state` is the result of `load_state`.

        Raises:
          ConfigurationError: the checkpoint is of another model.
        """
        mine = _forms(variables)
        saved = state["variables"]
        if saved == mine:
            return
        pairs = itertools.zip_longest(saved, mine)
        number, (theirs, ours) = next(
            (i, pair) for i, pair in enumerate(pairs) if len(set(pair)) > 1
        )
        raise ConfigurationError(
            f"The checkpoint {path} is of another model or optimizer: it holds {len(saved)} "
            f"variables, and there are {len(mine)} now; the first that differs is number {number}: "
            f"{theirs or 'none'} there, {ours or 'none'} now. Use those it was written with, or "
            "another job_dir."
        )

    def load_variables(self, path: Place, variables: Sequence[tf.Variable]) -> None:
        """Loads the variables. `check_variables` has to be called before.

        Raises:
          CheckpointDamagedError: the checkpoint is not what was written.
        """
        try:
            _checkpoint(variables).read(str(path / PREFIX)).assert_consumed()
        except (ValueError, IndexError, AssertionError, tf.errors.OpError) as error:
            raise _damaged(path, _first_line(error)) from error

    def load_tensors(self, path: Place, state: dict[str, Any]) -> list[tf.Tensor]:
        """Returns the values of all variables, in the order of `save`.

        Args:
          state: the result of `load_state`.

        Raises:
          CheckpointDamagedError: the checkpoint is not what was written.
        """
        try:
            reader = tf.compat.v1.train.NewCheckpointReader(str(path / PREFIX))
            with tf.device("CPU:0"):
                return [
                    tf.convert_to_tensor(reader.get_tensor(VALUE.format(number)))
                    for number in range(len(state["variables"]))
                ]
        except (ValueError, tf.errors.OpError) as error:
            raise _damaged(path, _first_line(error)) from error

    def _checked_term(self) -> int:
        """Returns the term of this writer.

        Raises:
          CheckpointNotWrittenError: a later start of the job has written, or another job has
            claimed the directory.
        """
        ownership.check_still_owned(self._directory, self._owner)
        newest = directories.newest(directories.terms_in(self._directory))
        mine = newest if self._term is None else self._term()
        if newest > mine:
            raise CheckpointNotWrittenError(
                f"No checkpoint is written to {self._directory} any more: it has one of a later "
                f"start of this job (number {newest}; this worker belongs to number {mine})"
            )
        return mine


def _write(
    directory: Place, step: int, variables: Sequence[Values], state: dict[str, Any], term: int
) -> None:
    directory.mkdir(parents=True)
    with one_writer.direct():
        _checkpoint(variables).write(str(directory / PREFIX))
    text, blobs = packing.dumps({"step": step, "variables": _forms(variables), **state})
    (directory / STATE).write_bytes(text.encode())
    with (directory / BYTES).open("wb") as file:
        for blob in (b"", *blobs):  # TensorFlow makes a file only when something is written to it
            file.write(blob)
    manifest.write(directory, FORMAT_VERSION, term)


def _forms(variables: Sequence[Values]) -> list[str]:
    """Returns type and shape of each variable, such as "float32 [3, 3, 1, 16]"."""
    return [f"{v.dtype.name} {v.shape.as_list()}" for v in variables]


def _damaged(path: Place, why: str) -> CheckpointDamagedError:
    return CheckpointDamagedError(f"The checkpoint {path} is damaged ({why}).")


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def _checkpoint(variables: Sequence[Values]) -> tf.train.Checkpoint:
    # A variable made from a tensor shares its memory.
    tracked = [
        v if isinstance(v, tf.Variable) else tf.Variable(v, trainable=False) for v in variables
    ]
    return tf.train.Checkpoint(variables=tracked)


class BackgroundWriter:
    """Does one thing at a time in a thread of its own."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._outcome: Future[None] = Future()

    @property
    def is_busy(self) -> bool:
        """Whether something is being written."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, write: Callable[[], None]) -> None:
        """Waits for the write before, then begins to write.

        Raises:
          Exception: the error with which the write before has ended.
        """
        self.wait()
        self._outcome = Future()
        self._thread = threading.Thread(target=self._run, args=(write,), name="elastic-checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Returns when the present write is on disk.

        Raises:
          Exception: the error with which the write has ended; raised only once.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self._outcome.result()

    def _run(self, write: Callable[[], None]) -> None:
        try:
            write()
        except BaseException as error:  # `wait` raises it
            self._outcome.set_exception(error)
        else:
            self._outcome.set_result(None)
