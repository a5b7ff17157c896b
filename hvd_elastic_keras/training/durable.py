"""What rank 0 keeps on disk: checkpoints and results of one training."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvd_elastic_keras import files, protocol
from hvd_elastic_keras.checkpoint.manager import CheckpointManager
from hvd_elastic_keras.training.run_state import RunState
from hvd_elastic_keras.training.variables import ModelVariables
from hvd_elastic_keras.worker.session import Session

if TYPE_CHECKING:
    from hvd_elastic_keras.training.runtime import Training

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Durable:
    """What rank 0 keeps on disk; the functions do nothing without a job directory.

    Attributes:
      save_checkpoint, save_results: write the present state.
      load_results: takes over what another worker has saved at the end.
      go_on_from_newest: takes over the newest checkpoint of an interrupted training.
      exists: whether there is a checkpoint.
    """

    save_checkpoint: Callable[[], None]
    save_results: Callable[[], None]
    load_results: Callable[[], Any]
    go_on_from_newest: Callable[[], None]
    exists: Callable[[], bool]


def durable(
    training: Training, state: RunState, variables: ModelVariables, session: Session
) -> Durable:
    """Checkpoints and results of a training in its directory."""
    if training.job_dir is None:
        return Durable(_nothing, _nothing, _nothing, _nothing, exists=lambda: False)
    directory = files.training_dir(training.job_dir, session.training)
    directory.mkdir(parents=True, exist_ok=True)
    manager = CheckpointManager(directory, training.origin)
    values = list(variables.all)

    def save_checkpoint() -> None:
        step = state.cursor.global_step
        path = manager.save(step, values, state.to_json())
        session.record("checkpoint_saved", step=step, path=str(path))

    def save_results() -> None:
        # Also for a worker that starts when the script has gone on to its next training.
        manager.save(state.cursor.global_step, values, state.to_json())
        history = training.callbacks.history
        files.write_atomically(directory / files.MODEL, training.model.save)
        files.write_json(
            directory / files.HISTORY, {"epoch": history.epoch, "history": history.history}
        )

    def load_newest() -> Path | None:
        found = manager.load_newest(values)
        if found is None:
            return None
        path, run = found
        state.from_json(run, path)
        log.info("loaded the checkpoint of step %d: %s", state.cursor.global_step, path)
        return path

    def go_on_from_newest() -> None:
        path = load_newest()
        step = state.cursor.global_step
        session.record(protocol.CHECKPOINT_LOADED, step=step, path=str(path))

    return Durable(
        save_checkpoint=save_checkpoint,
        save_results=save_results,
        load_results=load_newest,
        go_on_from_newest=go_on_from_newest,
        exists=lambda: manager.check_newest(values) is not None,
    )


def _nothing(*_: Any) -> None:
    return None
