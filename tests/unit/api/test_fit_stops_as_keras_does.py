"""`stop_training` in any hook, and callbacks of any signature, alone: as in plain `fit`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
pytest.importorskip("tensorflow")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras import ElasticCallback

X = np.random.default_rng(0).normal(size=(44, 4)).astype("float32")
HOOKS = (
    *("on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_train_batch_end"),
    *("on_test_begin", "on_test_batch_begin", "on_test_end", "on_epoch_end"),
)


class Stopper(keras.callbacks.Callback):
    """Writes down all hooks, and stops the training in one of them."""

    def __init__(self, hook: str, call: int) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []
        self._stops_at = (hook, call)

    def note(self, name: str, index: int) -> None:
        """Called by every hook."""
        self.calls.append((name, index))
        if (name, [n for n, _ in self.calls].count(name)) == self._stops_at:
            self.model.stop_training = True


def _noting(name: str) -> Any:
    def hook(self: Stopper, *index: int, logs: Any = None) -> None:
        self.note(name, index[0] if isinstance(index[0], int) else -1)

    return hook


for _name in (*HOOKS, "on_test_batch_end", "on_train_end"):
    setattr(Stopper, _name, _noting(_name))


def fit(elastic: bool, *callbacks: Any, **compile_arguments: Any) -> Any:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.1), "mse", **compile_arguments)
    ours = [ElasticCallback()] if elastic else []
    return model.fit(
        X,
        X[:, :2],
        batch_size=8,
        epochs=3,
        shuffle=False,
        verbose=0,
        validation_data=(X[:20], X[:20, :2]),
        callbacks=[*callbacks, *ours],
    )


@pytest.mark.parametrize("steps_per_execution", [1, 4])
@pytest.mark.parametrize("hook", HOOKS)
def test_a_wish_to_stop_is_granted_when_plain_fit_does(hook: str, steps_per_execution: int) -> None:
    # The second call: within the first epoch for batches, within the second one for epochs.
    call = 1 if hook == "on_train_begin" else 2
    stoppers = [Stopper(hook, call) for _ in range(2)]
    found, expected = (
        fit(elastic, stopper, steps_per_execution=steps_per_execution)
        for elastic, stopper in zip((True, False), stoppers, strict=True)
    )
    assert stoppers[0].calls == stoppers[1].calls
    assert found.epoch == expected.epoch
    for name, values in expected.history.items():
        np.testing.assert_allclose(found.history[name], values, rtol=1e-5, err_msg=name)


def test_hooks_get_their_arguments_as_in_plain_fit() -> None:
    calls: list[Any] = []
    callback = keras.callbacks.LambdaCallback(
        on_train_begin=calls.append,
        on_epoch_begin=lambda epoch, logs: calls.append((epoch, logs)),
        on_train_batch_begin=lambda batch, **by_name: calls.append((batch, list(by_name))),
        on_train_batch_end=lambda batch, **by_name: calls.append((batch, list(by_name))),
        on_epoch_end=lambda epoch, logs: calls.append((epoch, sorted(logs))),
        on_train_end=lambda logs: calls.append(sorted(logs)),
    )
    fit(True, callback)
    found = calls.copy()
    calls.clear()
    fit(False, callback)
    assert found == calls


class MeanOfBatches(keras.metrics.Mean):
    """Counts batches: micro-batches must not count as batches."""

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Takes the mean of a batch in as one value."""
        super().update_state(keras.ops.mean(y_pred))


def test_metrics_given_to_compile_are_told_apart_one_by_one() -> None:
    # The last batch is smaller: an accuracy counts its examples, a mean of batches does not.
    found, expected = (
        fit(elastic, metrics=["mae", MeanOfBatches(name="batches")]) for elastic in (True, False)
    )
    assert found.history.keys() == expected.history.keys()
    for name, values in expected.history.items():
        np.testing.assert_allclose(found.history[name], values, rtol=1e-5, err_msg=name)
