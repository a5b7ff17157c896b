"""Like `fault_model.py`, with an optimizer that applies the sum of 5 steps.

A fault's `step` counts applied sums. `step=2` is first reached in step 10, the first of the third
group of 5.
"""

from __future__ import annotations

import keras

from tests.harness import fault_model
from tests.harness.fault_model import dataset

__all__ = ["dataset", "model"]


def model() -> keras.Model:
    """Returns a model whose 24 steps end in the middle of a group of 5."""
    network = fault_model.model()
    network.compile(
        optimizer=keras.optimizers.SGD(0.05, momentum=0.9, gradient_accumulation_steps=5),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return network
