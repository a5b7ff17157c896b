"""Like `fault_model.py`, with Adam, which amplifies rounding; notes the bits after every step."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tests.harness import fault_model
from tests.harness.fault_model import dataset

__all__ = ["callbacks", "dataset", "model"]

DIRECTORY = "HVD_ELASTIC_TEST_DIGESTS"


class Digests(keras.callbacks.Callback):
    """Appends "moment step digest" after each step and epoch.

    The digest covers all variables and the logs.
    """

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes the state after a step."""
        self._note("step", logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Notes the state after an epoch, and the results of validation."""
        self._note("epoch", logs)

    def _note(self, moment: str, logs: dict[str, Any]) -> None:
        digest = hashlib.sha256(repr(sorted(logs.items())).encode())
        for variable in (*self.model.variables, *self.model.optimizer.variables):
            digest.update(np.asarray(variable).tobytes())
        directory = Path(os.environ[DIRECTORY])
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / fault_model.worker_id()).open("a") as file:
            file.write(f"{moment} {int(self.model.optimizer.iterations)} {digest.hexdigest()}\n")


def callbacks() -> list[keras.callbacks.Callback]:
    """Returns the note-taking callback; none if there is no directory for its notes."""
    return [Digests()] if DIRECTORY in os.environ else []


def model() -> keras.Model:
    """Returns a model with batch norm, dropout and Adam."""
    network = fault_model.model()
    network.compile(
        optimizer=keras.optimizers.Adam(0.01),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return network
