"""The model of `fault_model.py`, whose gradients travel in parts however small they are."""

from __future__ import annotations

from hvd_elastic_keras.step import reduction
from tests.harness.fault_model import dataset, model

__all__ = ["dataset", "model"]
reduction.LEAST_BYTES = 1
