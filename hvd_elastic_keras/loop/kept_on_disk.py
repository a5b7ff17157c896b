"""Checkpoints and results of one training, which rank 0 keeps on disk."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable
from pathlib import Path

import keras
import tensorflow as tf

from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.errors import CheckpointNotWrittenError, in_one_line
from hvd_elastic_keras.common.events import CheckpointLoaded, CheckpointSaved
from hvd_elastic_keras.keras_internals.file_writers import weights_on_disk
from hvd_elastic_keras.keras_internals.model_variables import ModelVariables, unwrapped
from hvd_elastic_keras.loop.callback_runner import CallbackRunner
from hvd_elastic_keras.settings.options import NO_OPTIONS, SAVED_MODEL, RunOptions
from hvd_elastic_keras.state import one_writer
from hvd_elastic_keras.state.checkpoint import directories, ownership
from hvd_elastic_keras.state.checkpoint.manager import CheckpointManager, Origin
from hvd_elastic_keras.state.checkpoint.places import Place
from hvd_elastic_keras.state.checkpoint.remote import checkpoints_of
from hvd_elastic_keras.state.checkpoint.store import BackgroundWriter, Term
from hvd_elastic_keras.state.run_state import RunState
from hvd_elastic_keras.worker.session import Session
from hvd_elastic_keras.worker.tensor_bytes import bytes_of, copies_of

log = logging.getLogger(__name__)

RAISED = "raised"
"""Directory, beside the checkpoints, for the state in which an error has ended a training."""
CAUGHT = "caught"
"""File in it: the script has caught the error, and has trained again."""
NOT_BUILT = "has not yet been built"
"""Part of the messages of Keras about models that it cannot save."""
LEAST_COPIED_BYTES = 2**16
"""Size from which on a checkpoint copies a variable before the next step."""


class Durable:
    """Checkpoints and results of a training. This base class keeps none: it has no job directory.

    Attributes:
      writer: writes the checkpoints.
    """

    def __init__(self) -> None:
        self.writer = BackgroundWriter()

    def begin_checkpoint(self, *, copies: bool = True) -> None:
        """Notes the present state in memory; `writer` then writes it.

        Args:
          copies: whether steps follow, so that large variables are copied now. Without a copy,
            TensorFlow makes one of a variable that is assigned meanwhile, which takes longer.
        """

    def save_checkpoint(self) -> None:
        """Returns when the present state is on disk."""

    def save_results(self) -> None:
        """Writes the final state, which is the present one, and the trained model.

        If an error has ended the training, only the state is written: if the script does not catch
        the error, the training goes on from the checkpoint before.
        """

    def load_results(self) -> None:
        """Takes over the final state that another worker has saved."""

    def go_on_from_newest(self) -> bool:
        """Takes over the newest checkpoint of an interrupted training.

        Call this only when no worker has a state, so that no worker writes.

        Returns:
          Whether there is a checkpoint.
        """
        return False


def term_for(term: Term, options: RunOptions) -> Term:
    """Returns the term that fences the checkpoints, or None if they have a directory of their own.

    In such a directory, terms of several job directories may meet.
    """
    return None if options.checkpoint_dir else term


class KeptOnDisk(Durable):
    """Checkpoints and results of a training in its directory.

    Args:
      job_dir: directory of the job; later trainings of a script have their own directories in it.
      options: where checkpoints go, and how many are kept.
      term: see `CheckpointStore`.

    Raises:
      ConfigurationError: another job writes its checkpoints there.
    """

    def __init__(
        self,
        job_dir: Path,
        origin: Origin,
        *,
        model: keras.Model,
        callbacks: CallbackRunner,
        state: RunState,
        session: Session,
        options: RunOptions = NO_OPTIONS,
        term: Term = None,
    ) -> None:
        super().__init__()
        self._directory = files.training_dir(job_dir, session.training)
        self._directory.mkdir(parents=True, exist_ok=True)
        checkpoints = checkpoints_of(job_dir, session.training, options.checkpoint_dir)
        self._manager = CheckpointManager(
            checkpoints,
            origin,
            options.keep_checkpoints,
            term,
            before_publishing=functools.partial(session.reporter.passes, "checkpointing"),
            owner=ownership.claim(checkpoints),
        )
        self._raised_place = checkpoints / RAISED
        self._raised = CheckpointManager(self._raised_place, origin, 1, term)
        """The state in which an error of callbacks has ended the training."""
        before = checkpoints_of(job_dir, session.training - 1, options.checkpoint_dir) / RAISED
        if session.training > 1 and before.exists():
            (before / CAUGHT).write_bytes(b"")
        self._model = model
        self._callbacks = callbacks
        self._state = state
        self._values = list(state.variables.all)
        self._reporter = session.reporter
        self._exports = options.export == SAVED_MODEL
        self._written = -1
        """The `Cursor.progress` of the newest checkpoint that this process has written."""

    def begin_checkpoint(self, *, copies: bool = True) -> None:
        """See `Durable`."""
        if self._callbacks.raised is None:
            self.writer.start(self._noted(copies=copies))

    def save_checkpoint(self) -> None:
        """See `Durable`."""
        self.writer.wait()
        if self._callbacks.raised is None and self._written != self._state.cursor.progress:
            self._noted(copies=False)()

    def _noted(self, *, copies: bool) -> Callable[[], None]:
        """Returns a function that writes the present state whenever called."""
        cursor, run = self._state.cursor, self._state.state()
        variables = self._state.variables
        tensors = present_values(variables) if copies else variables.values()

        def write() -> None:
            try:
                path = self._manager.save(cursor.global_step, tensors, run)
            except CheckpointNotWrittenError as error:
                self._reporter.show(f"warning: {error}. Training goes on; the next one is tried.\n")
            else:
                self._written = cursor.progress
                self._reporter.record(CheckpointSaved(step=cursor.global_step, path=str(path)))

        return write

    def save_results(self) -> None:
        """See `Durable`."""
        self.writer.wait()
        marks = self._state.marks
        if marks.raised is not None:
            directories.remove_tree(self._raised_place)
            if marks.raised:
                step = self._state.cursor.global_step
                self._raised.save(step, self._values, self._state.state())
            return
        # This checkpoint also serves a worker that starts when the script is in its next training.
        # That worker takes everything from it, so the files below may be missing.
        try:
            self._manager.save(self._state.cursor.global_step, self._values, self._state.state())
        except CheckpointNotWrittenError as error:
            raise CheckpointNotWrittenError(
                f"The training is finished, but its results are not on disk. {error}. Make room, "
                "and start the same command again: it goes on from the checkpoint before."
            ) from error
        directories.remove_tree(self._raised_place)
        save_model(self._directory, self._model, self._reporter.show)
        if self._exports:
            _export(self._directory / files.EXPORT, self._model, self._reporter.show)
        history = self._callbacks.history
        files.write_json(
            self._directory / files.HISTORY, {"epoch": history.epoch, "history": history.history}
        )

    def load_results(self) -> None:
        """See `Durable`."""
        if self._load_newest(self._raised) is None:
            self._load_newest(self._manager)

    def go_on_from_newest(self) -> bool:
        """See `Durable`."""
        self._manager.remove_unfinished()
        was_caught = (self._raised_place / CAUGHT).exists()
        path = self._load_newest(self._raised) if was_caught else None
        path = path or self._load_newest(self._manager)
        if path is None:
            return False
        self._reporter.record(CheckpointLoaded(step=self._state.cursor.global_step, path=str(path)))
        return True

    def _load_newest(self, manager: CheckpointManager) -> Place | None:
        show = self._reporter.show
        found = manager.load_newest(self._values, lambda line: show(f"{line}\n"))
        if found is None:
            return None
        path, run = found
        self._state.restore(run, str(path))
        log.info("loaded the checkpoint of step %d: %s", self._state.cursor.global_step, path)
        return path


def save_model(
    directory: Path,
    model: keras.Model,
    show: Callable[[str], None],
    names: tuple[str, str] = (files.MODEL, files.WEIGHTS),
) -> Path | None:
    """Writes the trained model, or else its weights.

    An error shows a warning only: a training must not be lost over this file.

    Args:
      names: the names of the files for the model and for its weights.

    Returns:
      The file that was written, if any.
    """
    name, name_of_weights = names
    try:
        with one_writer.direct(), weights_on_disk(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", f".*{NOT_BUILT}")  # the script saves nothing here
            files.write_atomically(directory / name, model.save)
        return directory / name
    except Exception as error:  # user code describes the model, and may raise anything
        why = in_one_line(error)
    written: Path | None = directory / name_of_weights
    try:
        with one_writer.direct():
            files.write_atomically(directory / name_of_weights, model.save_weights)
        where = f"weights are in {name_of_weights}"
    except Exception as error:
        # Keras saves no model without `call`, such as a GAN; the first error says so.
        also = "" if NOT_BUILT in str(error) else f" ({in_one_line(error)})"
        written, where = None, f"weights are in the checkpoints only{also}"
    show(f"warning: {name} could not be saved, its {where}: {why}\n")
    return written


def _export(target: Path, model: keras.Model, show: Callable[[str], None]) -> None:
    """Exports the model for serving.

    An error shows a warning only: a training must not be lost over this, either.
    """
    try:
        with one_writer.direct(), directories.being_written(target) as temporary:
            model.export(str(temporary), verbose=False)
            directories.put_in_place(temporary, target)
    except Exception as error:  # user code traces the model, and may raise anything
        show(f"warning: {target.name} could not be exported: {in_one_line(error)}\n")


def present_values(variables: ModelVariables) -> list[tf.Tensor]:
    """Returns the present values. Later steps do not change them.

    Large values that an optimizer assigns are copied here. TensorFlow copies the others when they
    are assigned. For frozen weights, which may be large, that never happens. For small values, a
    copy made here would take ten times as long.
    """
    assigned = {id(unwrapped(v)) for v in (*variables.trainable, *variables.optimizer)}
    values = variables.values()
    large = [
        number
        for number, variable in enumerate(variables.all)
        if id(variable) in assigned and bytes_of(values[number]) >= LEAST_COPIED_BYTES
    ]
    for number, copy in zip(large, copies_of([values[n] for n in large]), strict=True):
        values[number] = copy
    return values
