"""Everything a worker must have to go on at a step: cursor, variables, logs and callbacks."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from hvd_elastic_keras.data import structure
from hvd_elastic_keras.data.pipeline import Input
from hvd_elastic_keras.errors import DataError
from hvd_elastic_keras.protocol import Assignment
from hvd_elastic_keras.training import codec
from hvd_elastic_keras.training.callback_runner import CallbackRunner
from hvd_elastic_keras.training.cursor import Cursor
from hvd_elastic_keras.training.learning_rate_scale import Ramp
from hvd_elastic_keras.training.user_state import UserState
from hvd_elastic_keras.training.variables import ModelVariables
from hvd_elastic_keras.worker.communicator import Communicator

PAYLOAD_VERSION = 3
NAMES = ("training", "validation")
"""Of the data of the inputs."""


@dataclasses.dataclass
class Marks:
    """What has happened so far, and must not happen again after a recovery.

    Attributes:
      epoch_begun: the last epoch whose `on_epoch_begin` has been called: never twice, it may
        change the learning rate.
      batch_begun: `Cursor.progress` of the last step whose batch-begin hook has been called.
      evaluation_begun: the last epoch whose `on_test_begin` has been called.
      stop_agreed: whether all workers know that callbacks end the training early.
      ended: whether `on_train_end` has been called.
    """

    epoch_begun: int = -1
    batch_begun: int = -1
    evaluation_begun: int = -1
    stop_agreed: bool = False
    ended: bool = False


class RunState:
    """The committed state of one worker. A commit is nothing but an advance of `cursor`.

    Args:
      inputs: the training input and, if there is one, that of the evaluation.
    """

    def __init__(
        self,
        model: keras.Model,
        variables: ModelVariables,
        callbacks: CallbackRunner,
        *,
        inputs: Sequence[Input],
        cursor: Cursor,
        user: UserState,
    ) -> None:
        self.cursor = cursor
        self.marks = Marks()
        self.ramp = Ramp()
        """The scale of the learning rate, as of the last finished step."""
        self.epoch_logs: dict[str, Any] = {}
        self.evaluation_logs: dict[str, Any] = {}
        self.exists = False
        """Whether this worker holds a state worth keeping (false until its first sync)."""
        self._model = model
        self._variables = variables
        self._callbacks = callbacks
        self._inputs = inputs
        self.unfinished: Cursor | None = None
        """Where an epoch was left that the given number of steps has cut off."""
        self._fingerprints = [structure.fingerprint(i.first_batch()) for i in inputs]
        self.user = user

    def to_json(self) -> dict[str, Any]:
        """All but the variables."""
        return {
            "version": PAYLOAD_VERSION,
            "cursor": self.cursor.to_json(),
            "unfinished": None if self.unfinished is None else self.unfinished.to_json(),
            "marks": dataclasses.asdict(self.marks),
            "ramp": dataclasses.asdict(self.ramp),
            "epoch_logs": codec.to_json(self.epoch_logs),
            "evaluation_logs": codec.to_json(self.evaluation_logs),
            "stop_training": bool(self._model.stop_training),
            "batches_per_pass": [i.batches_per_pass for i in self._inputs],
            "num_examples": [i.num_examples for i in self._inputs],
            "fingerprints": self._fingerprints,
            "callbacks": self._callbacks.state(),
            "user": self.user.to_json(),
        }

    def from_json(self, content: dict[str, Any], checkpoint: Path | None = None) -> None:
        """Takes over what `to_json` made.

        Args:
          checkpoint: where it was read from; None if another worker has sent it.

        Raises:
          DataError: it was made by a worker that reads other data.
        """
        self._check_data(content["fingerprints"], checkpoint)
        self._check_sizes(content, checkpoint)
        self.cursor = Cursor.from_json(content["cursor"])
        unfinished = content.get("unfinished")  # older checkpoints have none
        self.unfinished = None if unfinished is None else Cursor.from_json(unfinished)
        self.marks = Marks(**content["marks"])
        self.ramp = Ramp(**content.get("ramp", {}))  # older checkpoints have none
        self.epoch_logs = codec.from_json(content["epoch_logs"])
        self.evaluation_logs = codec.from_json(content["evaluation_logs"])
        self._model.stop_training = content["stop_training"]
        # With a checkpoint, the validation may be new, or there is none any more.
        for source, count in zip(self._inputs, content["batches_per_pass"], strict=False):
            if checkpoint is None:
                source.know_batches_per_pass(count)
            else:
                source.expect_batches_per_pass(count)
        self._callbacks.set_state(content["callbacks"])
        self.user.from_json(content["user"])

    def synchronise(self, communicator: Communicator, place: Assignment) -> None:
        """Brings this worker to the root's state, in two phases.

        First everything is received into fresh tensors; only when all of it is here is anything
        assigned. A worker whose sync is interrupted keeps the state it had.

        Raises:
          CollectiveFailedError: a peer went away meanwhile; nothing has changed.
          DataError: this worker reads other data than rank 0.
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
            self.from_json(content)
            self._variables.assign(tensors)

    def _check_data(self, expected: list[list[list[Any]]], checkpoint: Path | None) -> None:
        if checkpoint is None and len(expected) != len(self._inputs):
            raise DataError(
                "Some workers have validation data and others have none. Every worker runs the "
                "whole script: give all the same data."
            )
        for name, mine, other in zip(NAMES, self._fingerprints, expected, strict=False):
            same = structure.same_fingerprint(mine, other)
            if not same and checkpoint:
                raise DataError(
                    f"The first batch of the {name} data is not the one that {checkpoint} was made "
                    "with: the examples are others, or in another order. Going on would repeat "
                    "some and lose others. Use the same data again, or another job_dir."
                )
            if not same:
                raise DataError(
                    f"The first batch of the {name} data is not the same in all workers, so that "
                    "some examples would be used twice and others never. Every worker runs the "
                    "whole script: seed all that is random before the data are made, for example "
                    "with keras.utils.set_random_seed(1) or shuffle(n, seed=1)."
                )

    def _check_sizes(self, content: dict[str, Any], checkpoint: Path | None) -> None:
        # Older checkpoints have batches only.
        for unit, key in (("examples", "num_examples"), ("batches", "batches_per_pass")):
            for name, source, other in zip(NAMES, self._inputs, content.get(key, ()), strict=False):
                mine = getattr(source, key)
                told = not source.ends_unannounced and None not in (mine, other)
                if told and mine != other and checkpoint:
                    raise DataError(
                        f"The {name} data have {mine} {unit}, but had {other} when {checkpoint} "
                        "was made. Going on would repeat examples or lose some. Use the same data "
                        "again, or another job_dir."
                    )
                if told and mine != other:
                    raise DataError(
                        f"The {name} data have {mine} {unit} in this worker, but {other} in "
                        "others. Every worker runs the whole script: give all the same data."
                    )
