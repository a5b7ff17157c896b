"""What callbacks remember is given to a worker that joins later, or is named."""

from __future__ import annotations

import argparse
import collections
import csv
import dataclasses
import datetime
import enum
import functools
import inspect
import io
import logging
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.loop.callback_runner import CallbackRunner
from hvd_elastic_keras.state import callback_state, packing

X = tf.ones((8, 2))


@dataclasses.dataclass(frozen=True)
class Marker:
    """What callbacks compare with `is`."""

    name: str = "unset"


UNSET = Marker()


class Tracker:
    """An object of the user's own."""


Best = collections.namedtuple("Best", "step loss")


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Progress:
    step: int


def local_class() -> Any:
    """A class that no other process finds by its name."""

    @dataclasses.dataclass(frozen=True)
    class Local:
        step: int

    return Local


def holds_itself() -> list[Any]:
    found: list[Any] = []
    found.append({"outer": found})
    return found


class Holds(keras.callbacks.Callback):
    """A callback with one attribute."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.kept = value


@dataclasses.dataclass(frozen=True)
class Settings:
    tracker: Any = dataclasses.field(default_factory=Tracker)


def model() -> Any:
    found = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    found.compile("sgd", "mse")
    return found


def lost(value: Any) -> str:
    return callback_state.warning_of(callback_state.unsendable_warning([Holds(value)]))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Tracker(), "Holds.kept (a Tracker)"),
        ([1, Tracker()], "Holds.kept (list of a Tracker)"),
        ({"a": {3: Tracker()}}, "Holds.kept (dict of dict of a Tracker)"),
        (tf.Variable("a"), "Holds.kept (a ResourceVariable)"),
        (Best(1, 0.5), "Holds.kept (a Best)"),
        ([Best(1, 0.5)], "Holds.kept (list of a Best)"),
        (collections.defaultdict(lambda: 0), "Holds.kept (a defaultdict)"),
        (Progress(1), "Holds.kept (a Progress)"),
        (Colour.RED, "Holds.kept (a Colour)"),
        (np.ma.masked_array([1], mask=[True]), "Holds.kept (a MaskedArray)"),
        (tf.constant("a"), "Holds.kept (a EagerTensor)"),
        (local_class()(1), "Holds.kept (a Local)"),
        (holds_itself(), "Holds.kept (list)"),
    ],
    ids=lambda value: value[12:] if isinstance(value, str) else "",
)
def test_state_that_cannot_be_sent_is_named_with_its_type(value: Any, text: str) -> None:
    assert f": {text}. If" in lost(value)


@pytest.mark.parametrize(
    "value",
    [
        *({0: 1.0}, {1, 2}, [b"x"], None, tf.constant(1.0), 1 + 2j),
        *(collections.deque([1], 3), collections.Counter("ab"), collections.OrderedDict(a=1)),
        *(datetime.datetime(2026, 1, 1), np.random.default_rng(1), random.Random(1)),
        *(print, len, lambda: None, Path.exists, functools.partial(print, 1), logging, Tracker),
        *(logging.getLogger("a"), io.StringIO(), threading.Lock(), threading.RLock()),
        *(threading.Thread(), csv.writer(io.StringIO()), (n for n in range(3))),
        *(argparse.Namespace(a=Tracker()), Settings(), Path("a")),
        *(keras.layers.Dense(1), keras.losses.MeanSquaredError(), keras.optimizers.SGD()),
        *(tf.data.Dataset.range(3), tf.function(lambda x: x), [print, {"f": print}]),
        keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_travels_or_is_no_state_is_not_named(value: Any) -> None:
    assert lost(value) == ""


def test_variables_of_the_model_are_not_named() -> None:
    mine = model()
    callback = Holds([mine.layers[0].kernel, *mine.optimizer.variables])
    assert callback_state.unsendable_warning([callback]) == {}


ARGUMENTS: dict[str, Any] = {
    "LambdaCallback": {"on_epoch_end": lambda epoch, logs: None},
    "LearningRateScheduler": {"schedule": lambda epoch: 0.1},
    "ModelCheckpoint": {"filepath": "{tmp}/model.keras"},
    "BackupAndRestore": {"backup_dir": "{tmp}/backup"},
    "CSVLogger": {"filename": "{tmp}/log.csv"},
    "TensorBoard": {"log_dir": "{tmp}/board"},
    "EarlyStopping": {"monitor": "loss", "restore_best_weights": True},
    "ReduceLROnPlateau": {"monitor": "loss"},
}


def test_no_callback_of_keras_is_named_before_or_after_a_training(tmp_path: Path) -> None:
    kinds = {
        name: kind
        for name, kind in vars(keras.callbacks).items()
        if inspect.isclass(kind) and name not in ("CallbackList", "OrbaxCheckpoint")
    }
    assert len(kinds) > 12
    callbacks = []
    for name, kind in kinds.items():
        given = {
            key: value.format(tmp=tmp_path) if isinstance(value, str) else value
            for key, value in ARGUMENTS.get(name, {}).items()
        }
        derived = type(f"My{name}", (kind,), {})
        callbacks += [derived(**given)] if name != "ProgbarLogger" else []
    mine = model()
    shared = [c for c in callbacks if type(c).__base__.__name__ != "RemoteMonitor"]
    for callback in shared:
        callback.set_model(mine)
    assert callback_state.unsendable_warning(shared) == {}
    swaps = [c for c in shared if "Swap" not in type(c).__name__]
    mine.fit(X, X, batch_size=4, epochs=2, verbose=0, callbacks=swaps)
    assert callback_state.unsendable_warning(shared) == {}


class SaysItself(Holds):
    """Says what it remembers."""

    def get_state(self) -> Any:
        return getattr(self.kept, "number", self.kept)

    def set_state(self, state: Any) -> None:
        self.kept = Tracker()
        self.kept.number = state


def test_a_callback_that_says_what_it_remembers_is_not_named_and_is_asked() -> None:
    ours, other = Tracker(), SaysItself(Tracker())
    ours.number = {4: 2}  # type: ignore[attr-defined]
    mine = model()
    assert callback_state.unsendable_warning([SaysItself(ours)]) == {}
    runner = CallbackRunner([SaysItself(ours)], mine, params={})
    joiner = CallbackRunner([other], mine, params={})
    joiner.restore(runner.state())
    assert other.kept is not ours
    assert other.kept.number == {4: 2}


def test_a_state_that_cannot_be_sent_is_refused_with_the_callback() -> None:
    with pytest.raises(ConfigurationError, match=r"SaysItself\.get_state\(\) returned something"):
        callback_state.attributes(SaysItself(Tracker()), model())


class Grows(Holds):
    """Gets an attribute that cannot be sent when an epoch ends."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.late = Tracker()


def test_an_attribute_that_comes_later_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    runner = CallbackRunner([Grows(Tracker())], model(), params={})
    runner.enter_round(0, None)
    runner.state()
    assert caplog.text == ""  # `kept` is named before the first step
    runner.call("on_epoch_end", 0, {})
    state = [runner.state(), runner.state()][-1]
    assert caplog.text.count("callbacks: Grows.late (a Tracker). If") == 1
    successor = CallbackRunner([Grows(Tracker())], model(), params={})
    successor.restore(state)
    successor.enter_round(0, 1)
    successor.call("on_epoch_end", 1, {})
    successor.state()
    assert caplog.text.count("Grows.late") == 1


def test_arrays_of_callbacks_are_sent_as_bytes() -> None:
    weights = np.random.default_rng(1).random(100_000)
    runner = CallbackRunner([Holds([weights])], model(), params={})
    message = packing.pack(runner.state())
    assert len(message) < weights.nbytes + 1000
    joiner = CallbackRunner([Holds(None)], model(), params={})
    joiner.restore(packing.unpack(message))
    np.testing.assert_array_equal(joiner._callbacks[0].kept[0], weights)


@dataclasses.dataclass(frozen=True)
class Score:
    loss: float


def test_a_class_that_a_joiner_has_not_loaded_is_named_and_the_rest_is_taken_over(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, joiner = Holds(Score(0.5)), Holds(None)
    root.count = 3  # type: ignore[attr-defined]
    encoded = callback_state.attributes(root, model())
    callback_state.set_attributes(joiner, encoded, model())
    assert (joiner.kept, caplog.text) == (Score(0.5), "")
    monkeypatch.delattr(f"{__name__}.Score")
    late = Holds("mine")
    callback_state.set_attributes(late, encoded, model())
    assert (late.kept, late.count) == ("mine", 3)  # type: ignore[attr-defined]
    assert "Holds.kept is not taken over: A state holds a" in caplog.text


def test_an_object_that_is_the_same_on_both_keeps_its_identity() -> None:
    class Waits(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.options = UNSET
            self.best = [1.0]

    callback = Waits()
    encoded = callback_state.attributes(callback, model())
    encoded["best"] = callback_state.json_codec.encode([2.0])
    callback_state.set_attributes(callback, encoded, model())
    assert callback.options is UNSET
    assert callback.best == [2.0]
