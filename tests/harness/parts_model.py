"""The model of `fault_model.py`, with gradients sent in parts, however small they are."""

from __future__ import annotations

from hvd_elastic_keras.step.partition import gradients
from tests.harness.fault_model import dataset, model

__all__ = ["dataset", "model"]
gradients.LEAST_BYTES = 1
