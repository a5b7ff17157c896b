"""Python values to JSON and back."""

from __future__ import annotations

import json
from typing import Any

import keras
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_keras.training.codec import MARKS, NotEncodableError, from_json, to_json

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text().filter(lambda key: key not in MARKS), inner)
    ),
    max_leaves=10,
)


def through_json(value: Any) -> Any:
    return from_json(json.loads(json.dumps(to_json(value))))


@given(values)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    back = through_json(value)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.zeros((0, 4), np.int64),
        np.array(3.5),
        np.array([True, False]),
        np.array(["a", "bc"]),
        np.array([np.nan, np.inf]),
    ],
    ids=lambda a: f"{a.dtype}{a.shape}",
)
def test_arrays_keep_values_shape_and_dtype(array: np.ndarray) -> None:
    back = through_json({"a": [array]})["a"][0]
    np.testing.assert_array_equal(back, array)
    assert back.dtype == array.dtype


@pytest.mark.parametrize("scalar", [np.float32(0.5), np.int64(7), np.bool_(True), np.float64(0.1)])
def test_numpy_scalars_stay_what_they_are(scalar: Any) -> None:
    back = through_json(scalar)
    assert back == scalar
    assert type(back) is type(scalar)


@pytest.mark.parametrize(
    "value",
    [{1, 2}, b"x", object(), {1: "a"}, np.array([object()])],
    ids=lambda value: type(value).__name__,
)
def test_what_does_not_travel_is_refused_with_its_type(value: Any) -> None:
    with pytest.raises(NotEncodableError, match="cannot be sent to another worker"):
        to_json(value)


def test_comparisons_that_callbacks_remember_come_back_as_the_same_functions() -> None:
    for function in (keras.ops.less, keras.ops.greater, np.less):
        assert from_json(to_json(function)) is function


def test_other_functions_do_not_travel() -> None:
    with pytest.raises(NotEncodableError):
        to_json(lambda: None)


def test_half_precision_arrays_keep_their_dtype() -> None:
    array = np.array([1.5, -2.0]).astype(ml_dtypes.bfloat16)
    back = through_json(array)
    np.testing.assert_array_equal(back, array)
    assert back.dtype == array.dtype
