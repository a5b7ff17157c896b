"""Tries a model on a few real examples.

Matching shapes are not enough: a label may be out of range, or a string may stand for a number.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvd_elastic_keras.common.errors import DataError
from hvd_elastic_keras.data.examples import structure
from hvd_elastic_keras.data.input.interfaces import Input
from hvd_elastic_keras.keras_internals.model_building import describe, first_sentence, has_own_step
from hvd_elastic_keras.keras_internals.model_errors import remedy
from hvd_elastic_keras.observe.notices import notices

TRIED_EXAMPLES = 32


def try_first_examples(model: keras.Model, source: Input, name: str) -> None:
    """Computes the loss of the first examples, without any effect on weights.

    Args:
      name: name of the data, for messages.

    Raises:
      DataError: the model cannot compute the loss.
    """
    batch = structure.cut(source.first_batch(), 0, TRIED_EXAMPLES)
    count = structure.num_examples(batch)
    _warn_of_what_is_not_finite(batch, name)
    if has_own_step(model):
        return  # its own step may do anything with a batch
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    try:
        # The scope keeps variables unchanged. Regularizers ask the scope for the weights.
        weights = [(variable, variable.value) for variable in model.trainable_variables]
        with keras.StatelessScope(weights, collect_losses=True):
            y_pred = model(x, training=False)
            model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=False)
    except Exception as error:  # layers and losses may raise anything
        says = first_sentence(error)
        raise DataError(
            f"The model fails on the first {count} examples of {name}, which are "
            f"{describe(source.batch_spec)}: {type(error).__name__}: {says} "
            f"{remedy(says, source.batch_spec) or 'Change the data, the model or its loss.'}"
        ) from error


def _warn_of_what_is_not_finite(batch: Any, name: str) -> None:
    floating = [
        np.asarray(leaf)
        for leaf in tf.nest.flatten(batch)
        if isinstance(leaf, tf.Tensor) and leaf.dtype.is_floating
    ]
    if not all(np.isfinite(leaf.astype(np.float64)).all() for leaf in floating):
        notices.tell(
            f"warning: among the first examples of {name} are values that are not finite (NaN or "
            "infinity); the loss may become so, too."
        )
