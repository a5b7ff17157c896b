"""The arguments and times of callback hooks, compared with plain `keras.Model.fit`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras import ElasticCallback
from hvd_elastic_keras.loop.callback_runner import CallbackRunner

X = np.random.default_rng(0).random((20, 4), np.float32)
Y = X[:, :1].copy()
Calls = list[tuple[Any, ...]]


def calls_of(make: Callable[[Calls], Any], elastic: bool, **compile_arguments: Any) -> Calls:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **compile_arguments)
    calls: Calls = []
    callbacks = [make(calls), *([ElasticCallback()] if elastic else [])]
    data = {"x": X, "y": Y, "validation_data": (X[:5], Y[:5])}
    model.fit(**data, batch_size=4, epochs=3, shuffle=False, verbose=0, callbacks=callbacks)
    calls.append(("kernel", *np.round(model.get_weights()[0].ravel(), 5)))
    return calls


class LogsAreNeeded(keras.callbacks.Callback):
    """Has hooks without a default for the logs, which Keras always passes."""

    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self._calls = calls

    def on_train_begin(self, logs: Any) -> None:
        self._calls.append(("train begins", logs))

    def on_epoch_begin(self, epoch: int, logs: Any) -> None:
        self._calls.append(("epoch begins", epoch, logs))

    def on_train_batch_begin(self, batch: int, logs: Any) -> None:
        self._calls.append(("batch begins", batch, logs))

    def on_test_begin(self, logs: Any) -> None:
        self._calls.append(("test begins", logs))

    def on_test_batch_begin(self, batch: int, logs: Any) -> None:
        self._calls.append(("test batch begins", batch, logs))


def test_every_hook_is_given_logs() -> None:
    assert calls_of(LogsAreNeeded, elastic=True) == calls_of(LogsAreNeeded, elastic=False)


def test_lambdas_of_a_lambda_callback_are_given_logs() -> None:
    def make(calls: Calls) -> Any:
        return keras.callbacks.LambdaCallback(
            on_train_begin=lambda logs: calls.append(("train begins", logs)),
            on_epoch_begin=lambda epoch, logs: calls.append((epoch, logs)),
            on_train_batch_begin=lambda batch, logs: calls.append((batch, logs)),
        )

    assert calls_of(make, elastic=True) == calls_of(make, elastic=False)


class Stops(keras.callbacks.Callback):
    """Ends the training in a given hook, and notes all hooks that follow."""

    def __init__(self, calls: Calls, hook: str, number: int) -> None:
        super().__init__()
        self._calls, self._hook, self._number = calls, hook, number

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith(("on_train", "on_epoch", "on_test")):
            return super().__getattribute__(name)

        def note(number: Any = None, logs: Any = None) -> None:
            number = number if isinstance(number, int) else 0
            self._calls.append((name, number))
            if (name, number) == (self._hook, self._number):
                self.model.stop_training = True

        return note


@pytest.mark.parametrize("steps_per_execution", [1, 2])
@pytest.mark.parametrize(
    ("hook", "number"),
    [
        ("on_train_begin", 0),
        ("on_epoch_begin", 1),
        ("on_train_batch_begin", 2),
        ("on_train_batch_end", 1),
        ("on_test_begin", 0),
        ("on_epoch_end", 1),
    ],
)
def test_a_training_that_is_stopped_ends_where_fit_ends(
    hook: str, number: int, steps_per_execution: int
) -> None:
    found, expected = (
        calls_of(
            lambda calls: Stops(calls, hook, number),
            elastic,
            steps_per_execution=steps_per_execution,
        )
        for elastic in (True, False)
    )
    assert found == expected


class CountsBatches(keras.callbacks.Callback):
    """Counts batches by the older name of the hook."""

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Counts a batch at its beginning."""


@pytest.mark.parametrize(
    ("callback", "expected"),
    [
        (keras.callbacks.EarlyStopping(), False),
        (keras.callbacks.LearningRateScheduler(lambda epoch: 0.1), False),
        (keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: None), False),
        (keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: None), True),
        (CountsBatches(), True),
        (LogsAreNeeded([]), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_it_is_known_who_hears_of_a_batch_before_it_is_taken(callback: Any, expected: bool) -> None:
    runner = CallbackRunner([ElasticCallback(), callback], keras.Sequential(), params={})
    assert runner.calls_before_batch() is expected


def test_who_is_called_on_rank_0_alone_is_no_reason_for_others_to_wait(tmp_path: Path) -> None:
    callback = keras.callbacks.TensorBoard(tmp_path)
    runner = CallbackRunner([callback], keras.Sequential(), params={})
    assert not runner.calls_before_batch()
