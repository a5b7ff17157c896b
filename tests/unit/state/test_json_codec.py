"""Python values to JSON and bytes, and back."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
import random
import zoneinfo
from pathlib import Path
from typing import Any

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.state.json_codec import MARKS, NotEncodableError, decode, encode
from hvd_elastic_keras.state.packing import dumps, loads, pack, unpack

Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass(frozen=True)
class Best:
    step: int
    weights: Any = None

    def __post_init__(self) -> None:
        assert not REFUSES, "nothing of the class is run"


REFUSES: list[bool] = []


@dataclasses.dataclass
class Progress:
    step: int


class Named(str):
    """A text with something to it."""


class Options(dict[str, Any]):
    """A dict with something to it."""


def holds_itself() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


class Colour(enum.IntEnum):
    RED = 1


plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
keys = plain | st.binary() | st.tuples(plain, plain) | st.sampled_from(MARKS)
values = st.recursive(
    plain | st.binary() | st.dates() | st.datetimes() | st.timedeltas() | st.sets(keys),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.lists(inner).map(lambda items: collections.deque(items, 3))
        | st.dictionaries(keys, inner)
        | st.dictionaries(keys, inner).map(collections.OrderedDict)
        | st.dictionaries(keys, inner).map(lambda items: collections.defaultdict(list, items))
        | st.frozensets(keys)
    ),
    max_leaves=10,
)


def on_the_way(value: Any) -> Any:
    return decode(unpack(pack(encode(value))))


@given(values)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    back = on_the_way(value)
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
        np.array(["2026-01-01", "NaT"], "M8[s]"),
        np.array([(1, 2.5)], [("a", "i4"), ("b", "f8", (2,))]),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    ],
    ids=lambda a: f"{a.dtype}{a.shape}",
)
def test_arrays_keep_values_shape_and_dtype(array: np.ndarray) -> None:
    back = on_the_way({"a": [array]})["a"][0]
    np.testing.assert_array_equal(back, array)
    assert back.dtype == array.dtype


@pytest.mark.parametrize("scalar", [np.float32(0.5), np.int64(7), np.bool_(True), np.float64(0.1)])
def test_numpy_scalars_stay_what_they_are(scalar: Any) -> None:
    back = on_the_way(scalar)
    assert back == scalar
    assert type(back) is type(scalar)


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1: object()},
        np.array([object()]),
        np.array([(1, None)], [("a", "i4"), ("b", "O")]),
        np.array(["a"], np.dtypes.StringDType()),
        np.ma.masked_array([1, 2], mask=[True, False]),
        Named("a"),
        Options(a=1),
        Best(1, object()),
        Progress(1),
        holds_itself(),
        Point(1, 2),
        Colour.RED,
        collections.defaultdict(lambda: 1),
        datetime.datetime(2026, 1, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_does_not_travel_is_refused_with_its_type(value: Any) -> None:
    with pytest.raises(NotEncodableError, match="cannot be sent to another worker"):
        encode(value)


def test_comparisons_that_callbacks_remember_come_back_as_the_same_functions() -> None:
    for function in (keras.ops.less, keras.ops.greater, np.less):
        assert decode(encode(function)) is function


def test_other_functions_do_not_travel() -> None:
    with pytest.raises(NotEncodableError):
        encode(lambda: None)


def test_half_precision_arrays_keep_their_dtype() -> None:
    array = np.array([1.5, -2.0]).astype(ml_dtypes.bfloat16)
    back = on_the_way(array)
    np.testing.assert_array_equal(back, array)
    assert back.dtype == array.dtype


def test_generators_of_random_numbers_go_on_where_they_are() -> None:
    for mine in (np.random.default_rng(3), np.random.Generator(np.random.MT19937(3))):
        mine.normal(size=5)
        back = on_the_way({"rng": mine})["rng"]
        assert back.normal() == mine.normal()
    old_one = np.random.RandomState(3)
    old_one.normal(size=5)
    assert on_the_way(old_one).normal() == old_one.normal()
    plain_one = random.Random(3)
    plain_one.random()
    assert on_the_way(plain_one).random() == plain_one.random()


def test_counters_paths_and_tensors_keep_their_type() -> None:
    counter = collections.Counter("abb")
    assert on_the_way(counter) == counter
    assert on_the_way(counter)["nothing"] == 0
    assert on_the_way(Path("a/b")) == Path("a/b")
    tensor = on_the_way(tf.constant([1.5, 2.0]))
    assert isinstance(tensor, tf.Tensor)
    assert tensor.numpy().tolist() == [1.5, 2.0]
    assert on_the_way(1 + 2j) == 1 + 2j
    aware = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.timezone.utc)
    assert on_the_way([aware, datetime.time(3, 4)]) == [aware, datetime.time(3, 4)]
    assert on_the_way(bytearray(b"xyz")) == bytearray(b"xyz")


def test_arrays_and_bytes_stay_out_of_the_text() -> None:
    value = {"weights": np.arange(1000.0), "raw": b"x" * 1000, "buffer": bytearray(1000)}
    text, blobs = dumps(encode({"step": 3, **value}))
    assert len(text) < 300
    assert [len(blob) for blob in blobs] == [8000, 1000, 1000]
    assert decode(loads(text, b"".join(blobs)))["raw"] == b"x" * 1000


def test_what_was_encoded_does_not_follow_the_value() -> None:
    value = {"weights": np.zeros(3), "seen": [1]}
    encoded = encode(value)
    value["weights"] += 1
    value["seen"].append(2)
    back = decode(encoded)
    assert (back["weights"].tolist(), back["seen"]) == ([0.0, 0.0, 0.0], [1])
    back["weights"] += 1  # and it may be changed again
    assert decode(encoded)["weights"].tolist() == [0.0, 0.0, 0.0]


def test_a_message_of_another_form_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"begins with b'{\"version.*Use the same rel"):
        unpack(b'{"version": 3}')


def test_bytes_that_are_missing_are_told() -> None:
    text, _ = dumps({"a": b"12345"})
    with pytest.raises(ValueError, match="there are 3 bytes, expected 5"):
        loads(text, b"123")


def test_a_frozen_dataclass_comes_back_without_a_call_of_its_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    best = Best(3, {"a": (np.arange(3.0), Best(4))})
    monkeypatch.setattr("tests.unit.state.test_json_codec.REFUSES", [True])
    back = on_the_way(best)
    assert (type(back), back.step, back.weights["a"][1].step) == (Best, 3, 4)
    np.testing.assert_array_equal(back.weights["a"][0], np.arange(3.0))


@pytest.mark.parametrize(
    "name", [[__name__, "Missing"], ["no.module", "Best"], ["os", "system"], [__name__, "Progress"]]
)
def test_other_classes_are_not_made(name: list[str]) -> None:
    tree = {"__kind__": ["dataclass", [name, {"step": 1}]]}
    with pytest.raises(ConfigurationError, match=r"no such frozen dataclass.*same script"):
        decode(tree)
