"""Lists, counters and models that callbacks use from outside are the same on all workers.

A worker runs the script in a process of its own. Here, `Script` stands for one such process.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest

from hvd_elastic_keras.loop.callback_runner import CallbackRunner
from hvd_elastic_keras.state import packing

SOURCE = """
import collections, keras, numpy as np
losses, best, seen, recent = [], {"loss": 1e9}, set(), collections.deque(maxlen=2)
scale, steps, settings, table = np.ones(2), 0, {"lr": 0.5}, np.zeros(1 << 20)
average = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
draws = np.random.default_rng(3)
count = keras.metrics.Sum()

def note(loss):
    losses.append(loss)
    best.update(loss=min(loss, best["loss"]))

def on_epoch_end(epoch, logs):
    global steps
    note(logs["loss"])
    seen.add(epoch)
    recent.append(logs["loss"])
    scale[epoch % 2] += 1
    steps += settings["lr"] * 10
    drawn = draws.random() + table[0]
    count.update_state([steps])
    average.set_weights([w + 1 for w in average.get_weights()])

def counted():
    calls = 0
    def count_calls(batch, logs):
        nonlocal calls
        calls += len([loss for loss in losses if loss < best["loss"] + 1])
        kept.append(calls)
    kept = []
    return count_calls, kept

class Meter:
    def __init__(self):
        self.total, self.unit = 0.0, "s"

    def add(self, value):
        self.total += value

class Plateau(keras.callbacks.Callback):
    calls = 0

    def __init__(self):
        super().__init__()
        self.meter = Meter()

    def on_epoch_end(self, epoch, logs):
        Plateau.calls += 1
        self.meter.add(logs["loss"])
        self.model.wait += 1
        self.model.notes.append(np.random.random())
        self.model.best_weights = self.model.get_weights()

plateau, tracker = Plateau(), Meter()

def kept_apart():
    history = []
    def keep(epoch, logs):
        history.append(epoch)
        tracker.add(2.0)
    return keep, history

(first, firsts), (second, seconds) = kept_apart(), kept_apart()
early = keras.callbacks.LambdaCallback(on_epoch_begin=first)
late = keras.callbacks.LambdaCallback(on_epoch_begin=second)
count_calls, kept = counted()
callback = keras.callbacks.LambdaCallback(on_epoch_end=on_epoch_end, on_train_batch_end=count_calls)
"""


class Script:
    """A worker's process that runs the script."""

    def __init__(self, folder: Any) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(SOURCE, f"{folder}/script.py", "exec"), self.names)
        keras.utils.set_random_seed(1)
        self.model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        self.model.wait, self.model.notes = 0, []
        self.random = np.random.RandomState(5).get_state()
        with self.own_random():
            names = ("callback", "plateau", "early", "late")
            callbacks = [self.names[name] for name in names]
            self.runner = CallbackRunner(callbacks, self.model, params={})

    def __getattr__(self, name: str) -> Any:
        return self.names[name]

    @contextlib.contextmanager
    def own_random(self) -> Iterator[None]:
        """Each process has generators of its own."""
        before = np.random.get_state()
        np.random.set_state(self.random)
        yield
        self.random = np.random.get_state()
        np.random.set_state(before)

    def train(self, epochs: range) -> None:
        with self.own_random():
            for epoch in epochs:
                self.runner.call("on_epoch_begin", epoch, {})
                self.runner.call("on_train_batch_end", 0, {})
                self.runner.call("on_epoch_end", epoch, {"loss": 1.0 / (epoch + 1)})

    def restore(self, state: dict[str, Any]) -> None:
        with self.own_random():
            self.runner.restore(state)

    @property
    def state(self) -> dict[str, Any]:
        with self.own_random():
            return packing.unpack(packing.pack(self.runner.state()))  # type: ignore[no-any-return]


@pytest.fixture
def trained(tmp_path: Any) -> Script:
    root = Script(tmp_path)
    root.runner.enter_round(0, None)
    root.train(range(3))
    return root


def assert_same(one: Script, other: Script) -> None:
    for name in ("losses", "best", "seen", "recent", "steps", "kept", "firsts", "seconds"):
        assert getattr(one, name) == getattr(other, name), name
    np.testing.assert_array_equal(one.scale, other.scale)
    assert one.draws.bit_generator.state == other.draws.bit_generator.state
    assert one.count.result() == other.count.result()
    assert (one.Plateau.calls, one.plateau.meter.total) == (
        other.Plateau.calls,
        other.plateau.meter.total,
    )
    assert one.tracker.total == other.tracker.total
    assert (one.model.wait, [*one.model.notes]) == (other.model.wait, [*other.model.notes])
    np.testing.assert_array_equal(one.model.best_weights[0], other.model.best_weights[0])
    for left, right in zip(one.average.get_weights(), other.average.get_weights(), strict=True):
        np.testing.assert_array_equal(left, right)


def test_a_newcomer_goes_on_as_the_others_do(trained: Script, tmp_path: Any) -> None:
    newcomer = Script(tmp_path)
    newcomer.runner.enter_round(1, 2)
    held = newcomer.losses
    newcomer.restore(trained.state)
    assert newcomer.losses is held, "another object may hold it, too"
    assert_same(trained, newcomer)
    for script in (trained, newcomer):
        script.train(range(3, 6))
    assert len(newcomer.losses) == 6
    assert_same(trained, newcomer)


def test_a_job_that_continues_has_the_values_of_its_checkpoint(
    trained: Script, tmp_path: Any
) -> None:
    resumed = Script(tmp_path)
    resumed.restore(trained.state)
    resumed.runner.enter_round(0, 3)
    assert_same(trained, resumed)
    joined = Script(tmp_path)
    joined.runner.enter_round(1, 3)
    joined.restore(resumed.state)
    assert_same(trained, joined)


def test_an_iterator_is_named_because_its_position_cannot_be_sent() -> None:
    rates = itertools.cycle([0.1, 0.2])
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch: next(rates))
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    warning = CallbackRunner([schedule], model, params={}).unsendable_warning()
    assert "rates (a cycle)" in warning


class Batches(keras.utils.PyDataset):
    """Data whose order changes with its hooks."""

    order = 0

    def on_epoch_end(self) -> None:
        self.order += 1


def test_data_and_generators_that_they_draw_from_are_left_to_the_data() -> None:
    batches = Batches()

    def on_epoch_end(epoch: int, logs: Any) -> None:
        batches.order += 1
        np.random.random()

    callback = keras.callbacks.LambdaCallback(on_epoch_end=on_epoch_end)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    for data_draw in (False, True):
        runner = CallbackRunner([callback], model, params={}, data_draw=data_draw)
        runner.enter_round(0, None)
        runner.call("on_epoch_end", 0, {})
        sent = runner.state()["outside"]
        assert {*sent} == (set() if data_draw else {"numpy.random"})


def test_a_method_of_an_array_is_no_generator() -> None:
    mean, seen = np.ones(3).mean, []
    callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(mean()))
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    runner = CallbackRunner([callback], model, params={})
    runner.enter_round(0, None)
    runner.call("on_epoch_end", 0, {})
    (name,) = runner.state()["outside"]
    assert name.endswith(".seen 0")


def test_objects_whose_attributes_are_sent_are_not_named(tmp_path: Any) -> None:
    assert Script(tmp_path).runner.unsendable_warning() == ""


def test_only_what_has_changed_is_sent(trained: Script) -> None:
    sent = trained.state["outside"]
    assert {
        "__main__.losses",
        "__main__.steps",
        "LambdaCallback counted.<locals>.count_calls.calls 0",
    } <= {*sent}
    assert not {"__main__.settings", "__main__.table", "__main__.note"} & {*sent}
