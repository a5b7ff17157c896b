"""A checkpoint has the values of the moment at which it was begun."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import keras

from hvd_elastic_keras.keras_internals.model_variables import ModelVariables
from hvd_elastic_keras.loop import kept_on_disk


def assign(variable: Any) -> None:
    variable.assign(tf.ones_like(variable))


def add_in_place(variable: Any) -> None:
    variable.assign_add(tf.ones_like(variable))


def add_to_rows(variable: Any) -> None:
    variable.scatter_add(tf.IndexedSlices(tf.ones([1, *variable.shape[1:]]), tf.constant([0])))


@pytest.mark.parametrize("change", [assign, add_in_place, add_to_rows])
@pytest.mark.parametrize("rows", [4, kept_on_disk.LEAST_COPIED_BYTES // 4 // 8 * 2])
@pytest.mark.parametrize("groups", [("trainable", "layers"), ("layers",), ("optimizer",)])
def test_what_steps_change_later_does_not_show(
    groups: tuple[str, ...], rows: int, change: Any
) -> None:
    variable = keras.Variable(np.zeros((rows, 8), "float32"))
    values = kept_on_disk.present_values(ModelVariables(**dict.fromkeys(groups, (variable,))))
    change(variable.value)
    assert np.any(variable.numpy())
    (value,) = values
    assert not np.any(value.numpy())
