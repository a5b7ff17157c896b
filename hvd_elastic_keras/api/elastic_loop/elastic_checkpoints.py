"""Checkpoints of a training loop of the user's own: commits on disk that outlive all workers.

From time to time, rank 0 writes the last commit to disk. It does so in a thread of its own, so that
a commit takes no longer. A checkpoint is always written when the job stops, and at the end.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.api.elastic_loop.elastic_state import ElasticState
from hvd_elastic_keras.common import protocol
from hvd_elastic_keras.common.errors import CheckpointNotWrittenError, ConfigurationError
from hvd_elastic_keras.common.events import CheckpointLoaded, CheckpointSaved
from hvd_elastic_keras.loop.kept_on_disk import term_for
from hvd_elastic_keras.settings.options import NO_OPTIONS, RunOptions
from hvd_elastic_keras.state import json_codec
from hvd_elastic_keras.state.broadcast import BUILD_FIRST, StateOrigin
from hvd_elastic_keras.state.checkpoint import ownership
from hvd_elastic_keras.state.checkpoint.places import Place
from hvd_elastic_keras.state.checkpoint.remote import checkpoints_of
from hvd_elastic_keras.state.checkpoint.store import BackgroundWriter, CheckpointStore, Term
from hvd_elastic_keras.worker.session import Session

log = logging.getLogger(__name__)

KIND = "elastic.run"


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A commit that is ready to be written: its content does not change any more.

    Attributes:
      progress: orders checkpoints by age.
      content: states of the parts.
      tensors: values of all variables.
    """

    progress: int
    content: dict[str, Any]
    tensors: tuple[tf.Tensor, ...]

    @property
    def commits(self) -> int:
        """Number of commits up to this one."""
        return int(self.content["counters"]["num_commits"])


class LoopCheckpoints:
    """The checkpoints of one call of a function of `elastic.run`.

    Args:
      job_dir: where checkpoints go; None writes and reads nothing.
      state: the state to save; its `checkpoint_every_...` attributes say how often.
      session: shows messages to people and records events of the job.
      clock: seconds of a steady clock.
      options: options of the job, which also say how often to write.
      term: see `CheckpointStore`.

    Raises:
      ConfigurationError: another running job writes its checkpoints there.
    """

    def __init__(
        self,
        job_dir: Path | None,
        state: ElasticState,
        session: Session,
        clock: Callable[[], float] = time.monotonic,
        options: RunOptions = NO_OPTIONS,
        *,
        term: Term = None,
    ) -> None:
        self._state = state
        self._reporter = session.reporter
        self._clock = clock
        self._options = options
        self._store: CheckpointStore | None = None
        self._number = session.training
        if job_dir is not None:
            directory = checkpoints_of(job_dir, session.training, options.checkpoint_dir)
            term = term_for(term, options)
            owner, keep = ownership.claim(directory), options.keep_checkpoints
            self._store = CheckpointStore(directory, keep, term, owner=owner)
        self._written_at = clock()
        self._written = -1
        """The progress of the newest checkpoint that this process has written or read."""
        self._written_commits = 0
        self._writer = BackgroundWriter()
        self.result: Any = None
        """The function's result, if the checkpoint that was read was written at its end."""

    # --- writing -------------------------------------------------------------------------

    def after_commit(self) -> None:
        """Writes the newest commit in the background if a checkpoint is due. For rank 0."""
        if self._store is None or not self.is_due():
            return
        self._written_at = self._clock()
        self._written_commits = self._state.num_commits
        self._writer.start(functools.partial(self._write, self._store, self._checkpoint()))

    def save(self, result: Any = None) -> None:
        """Writes the last commit, unless it is already on disk. For rank 0.

        Args:
          result: the function's result, if it has returned.
        """
        if self._store is None or not self._state.exists:
            return
        self.wait()
        if self._state.progress != self._written:
            self._write(self._store, self._checkpoint(result))

    def wait(self) -> None:
        """Waits until the checkpoint being written is on disk."""
        self._writer.wait()

    def is_due(self) -> bool:
        """Returns whether a checkpoint is due."""
        if self._store is None or self._writer.is_busy:
            return False
        state, options = self._state, self._options
        passed_s = self._clock() - self._written_at
        commits = state.num_commits - self._written_commits
        by_time = (state.checkpoint_every_s, options.checkpoint_every_minutes * 60)
        by_number = (state.checkpoint_every_n_commits, options.checkpoint_every_n_steps)
        return any(every and passed_s >= every for every in by_time) or any(
            every and commits >= every for every in by_number
        )

    def _checkpoint(self, result: Any = None) -> Checkpoint:
        content, tensors = self._state.kept()
        try:
            encoded = json_codec.encode(result)
        except json_codec.NotEncodableError as error:
            log.info("the result of the function is not written: %s", error)
            encoded = None
        content = {"kind": KIND, **content, "result": encoded}
        return Checkpoint(self._state.progress, content, tensors)

    def _write(self, store: CheckpointStore, checkpoint: Checkpoint) -> None:
        try:
            path = store.save(checkpoint.progress, checkpoint.tensors, {"loop": checkpoint.content})
        except CheckpointNotWrittenError as error:
            self._reporter.show(
                f"warning: {error}. Training goes on; until the next one, a job that loses all its "
                "workers would go on from an older one.\n"
            )
            return
        self._written = max(self._written, checkpoint.progress)
        self._reporter.record(
            CheckpointSaved(step=checkpoint.commits, unit=protocol.COMMIT, path=str(path))
        )

    # --- reading -------------------------------------------------------------------------

    def load(self) -> bool:
        """Loads the newest checkpoint and returns whether there is one. For rank 0.

        Call this only when no worker has a state. Then no worker writes a checkpoint either.

        Raises:
          ConfigurationError: the checkpoint is damaged, or was written by another script.
        """
        if self._store is None:
            return False
        self._store.remove_unfinished()
        path = self._take_newest(self._store)
        if path is None:
            return False
        state = self._state
        self._reporter.record(
            CheckpointLoaded(step=state.num_commits, unit=protocol.COMMIT, path=str(path))
        )
        if state.finished:
            self._reporter.show(
                f"{self._name} was finished with commit {state.num_commits}: its function is not "
                "called again. To train anew or further, give another --job_dir.\n"
            )
        return True

    def load_result(self) -> None:
        """Loads the state and result with which others have finished, if they are on disk."""
        if self._store is not None:
            self._take_newest(self._store)

    @property
    def _name(self) -> str:
        return f"training {self._number}" if self._number > 1 else "this training"

    def _take_newest(self, store: CheckpointStore) -> Place | None:
        found = store.newest(lambda line: self._reporter.show(f"{line}\n"))
        if found is None:
            return None
        path, saved = found
        content = saved.get("loop")
        if content is None:
            raise ConfigurationError(
                f"The checkpoint {path} was written by fit or Trainer, but now a training loop of "
                "your own (elastic.run) wants to go on from it. Use another --job_dir."
            )
        self._state.take_over(content, store.load_tensors(path, saved), _origin(path), str(path))
        self.result = json_codec.decode(content["result"])
        self._written = self._state.progress
        self._written_commits = self._state.num_commits
        return path


def _origin(path: Place) -> StateOrigin:
    remedy = "Use the script that it was written with, or another --job_dir."
    return StateOrigin(f"The checkpoint {path}", remedy, BUILD_FIRST)
