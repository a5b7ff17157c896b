"""Models, metrics and generators that callbacks hold have the same values on all workers."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from hvd_elastic_keras.loop.callback_runner import CallbackRunner
from hvd_elastic_keras.observe.notices import notices
from hvd_elastic_keras.state import packing


def network() -> keras.Model:
    found = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    found.compile("sgd", "mse")
    return found


class AverageWeights(keras.callbacks.Callback):
    """Averages the weights into a second model."""

    average: keras.Model | None = None

    def on_train_begin(self, logs: object = None) -> None:
        self.average = network()
        self.average.set_weights(self.model.get_weights())

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        for own, trained in zip(self.average.weights, self.model.weights, strict=True):
            own.assign(0.9 * own + 0.1 * trained)


class AveragesLate(AverageWeights):
    """Makes the second model after the first step."""

    def on_train_begin(self, logs: object = None) -> None:
        """Does nothing."""

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        if self.average is None:
            super().on_train_begin()


class Holds(keras.callbacks.Callback):
    """Holds variables in several ways."""

    def __init__(self) -> None:
        super().__init__()
        self.metrics = {"seen": keras.metrics.Mean(), "critics": [network(), network()]}
        self.strength = tf.Variable(1.0)
        self.seeds = keras.random.SeedGenerator(3)
        self.generator = tf.random.Generator.from_seed(1)


def runner_of(callback: keras.callbacks.Callback) -> CallbackRunner:
    return CallbackRunner([callback], network(), params={})


def sent(runner: CallbackRunner) -> dict[str, object]:
    return packing.unpack(packing.pack(runner.state()))  # type: ignore[no-any-return]


def averaged(callback: AverageWeights, steps: int) -> CallbackRunner:
    runner = runner_of(callback)
    runner.enter_round(0, None)
    for step in range(steps):
        for weight in callback.model.weights:
            weight.assign(weight + 1.0)
        runner.call("on_train_batch_end", step, {})
    return runner


def assert_same(one: keras.Model, other: keras.Model) -> None:
    for left, right in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(left, right)


def test_a_newcomer_gets_the_averaged_weights() -> None:
    root, newcomer = AverageWeights(), AverageWeights()
    state = sent(averaged(root, steps=3))
    joined = runner_of(newcomer)
    joined.enter_round(1, 0)
    joined.restore(state)
    assert_same(newcomer.average, root.average)


def test_a_checkpoint_gives_averaged_weights_to_a_model_that_is_made_later() -> None:
    root, resumed = AverageWeights(), AverageWeights()
    state = sent(averaged(root, steps=3))
    runner = runner_of(resumed)
    runner.restore(state)
    runner.enter_round(0, 1)
    assert_same(resumed.average, root.average)
    runner.enter_round(0, 1)  # another round changes nothing
    assert_same(resumed.average, root.average)


def test_a_callback_that_has_not_made_its_model_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    state = sent(averaged(AveragesLate(), steps=1))
    newcomer = runner_of(AveragesLate())
    newcomer.enter_round(1, 0)
    with notices.printed():
        newcomer.restore(state)
    assert "AveragesLate has not made average when it takes over" in capsys.readouterr().out


def test_variables_are_found_in_lists_dicts_metrics_and_generators() -> None:
    root, newcomer = Holds(), Holds()
    root.strength.assign(0.25)
    root.metrics["seen"].update_state([1.0, 4.0])
    drawn = [keras.random.uniform((3,), seed=root.seeds), root.generator.uniform((3,))]
    runner = runner_of(root)
    joined = runner_of(newcomer)
    assert runner.unsendable_warning() == ""
    joined.restore(sent(runner))
    joined.enter_round(1, 0)
    assert newcomer.strength == 0.25
    assert newcomer.metrics["seen"].result() == 2.5
    for i in range(2):
        assert_same(newcomer.metrics["critics"][i], root.metrics["critics"][i])
    again = [keras.random.uniform((3,), seed=newcomer.seeds), newcomer.generator.uniform((3,))]
    expected = [keras.random.uniform((3,), seed=root.seeds), root.generator.uniform((3,))]
    np.testing.assert_array_equal(again, expected)
    assert not np.array_equal(again, drawn)


def test_variables_of_the_trained_model_are_not_sent_again() -> None:
    callback = Holds()
    callback.metrics = {}
    runner = runner_of(callback)
    callback.strength = runner._model.layers[0]
    found = runner.state()["attributes"][0]["__variables__"]
    assert sorted(found) == ["generator", "seeds"]
