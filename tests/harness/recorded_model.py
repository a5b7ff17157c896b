"""Like `fault_model.py`, with Adam, which amplifies rounding; notes the state after every step."""

from __future__ import annotations

import keras

from tests.harness import digest_model
from tests.harness.fault_model import dataset
from tests.harness.recorded_steps import Recorder

__all__ = ["callbacks", "dataset", "model"]

model = digest_model.model


def callbacks() -> list[keras.callbacks.Callback]:
    """Returns the recorder."""
    return [Recorder()]
