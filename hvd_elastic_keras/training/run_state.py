"""Everything a worker must have to go on at a step: cursor, variables, logs and callbacks."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import keras
import tensorflow as tf

from hvd_elastic_keras.protocol import Assignment
from hvd_elastic_keras.training.callback_runner import CallbackRunner
from hvd_elastic_keras.training.cursor import Cursor, Phase
from hvd_elastic_keras.training.variables import ModelVariables
from hvd_elastic_keras.worker.communicator import Communicator

PAYLOAD_VERSION = 1


class RunState:
    """The committed state of one worker. A commit is nothing but an advance of `cursor`."""

    def __init__(
        self, model: keras.Model, variables: ModelVariables, callbacks: CallbackRunner
    ) -> None:
        self.cursor = Cursor()
        self.epoch_logs: dict[str, float] = {}
        self.epoch_begun = -1
        """The last epoch whose `on_epoch_begin` has been called: never twice, it may change the
        learning rate."""
        self.stop_agreed = False
        """Whether all workers know that callbacks end the training early."""
        self.ended = False
        """Whether `on_train_end` has been called."""
        self.exists = False
        """Whether this worker holds a state worth keeping (false until its first sync)."""
        self._model = model
        self._variables = variables
        self._callbacks = callbacks

    def to_json(self) -> dict[str, Any]:
        """All but the variables."""
        return {
            "version": PAYLOAD_VERSION,
            "cursor": {**dataclasses.asdict(self.cursor), "phase": self.cursor.phase.value},
            "epoch_logs": self.epoch_logs,
            "epoch_begun": self.epoch_begun,
            "ended": self.ended,
            "stop_agreed": self.stop_agreed,
            "stop_training": bool(self._model.stop_training),
            "callbacks": self._callbacks.state(),
        }

    def from_json(self, content: dict[str, Any]) -> None:
        """Takes over what `to_json` made."""
        cursor = content["cursor"]
        self.cursor = Cursor(**{**cursor, "phase": Phase(cursor["phase"])})
        self.epoch_logs = content["epoch_logs"]
        self.epoch_begun = content["epoch_begun"]
        self.ended = content["ended"]
        self.stop_agreed = content["stop_agreed"]
        self._model.stop_training = content["stop_training"]
        self._callbacks.set_state(content["callbacks"])

    def synchronise(self, communicator: Communicator, place: Assignment) -> None:
        """Brings this worker to the root's state, in two phases.

        First everything is received into fresh tensors; only when all of it is here is anything
        assigned. A worker whose sync is interrupted keeps the state it had.

        Raises:
          CollectiveFailedError: a peer went away meanwhile; nothing has changed.
        """
        if place.sync and place.size > 1:
            with communicator.collective():
                mine = json.dumps(self.to_json()).encode() if place.rank == 0 else b""
                payload = communicator.broadcast_bytes(mine, "elastic_sync")
                tensors = communicator.broadcast_tensors(self._variables.values(), "elastic_sync")
            self._take_over(json.loads(payload), tensors, place.rank)
        self.exists = True

    def _take_over(self, content: dict[str, Any], tensors: list[tf.Tensor], rank: int) -> None:
        behind = not self.exists or self.cursor.progress != content["cursor"]["progress"]
        if rank != 0 and behind:
            self._variables.assign(tensors)
            self.from_json(content)
