"""Like `digest_model.py`, with sums exchanged in slices, as for large models."""

from __future__ import annotations

from hvd_elastic_keras.step import deterministic_step
from tests.harness.digest_model import callbacks, dataset, model

__all__ = ["callbacks", "dataset", "model"]

deterministic_step.WHOLE_BYTES = 0
