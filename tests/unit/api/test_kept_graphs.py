"""What Keras's traced function does not see between two `fit`s, elastic steps do not see either."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras import ElasticCallback
from hvd_elastic_keras.common.errors import ConfigurationError

X = np.random.default_rng(7).normal(size=(48, 6)).astype("float32")
Y = (X[:, :1] * X[:, 1:2]).astype("float32")


class Scaled(keras.layers.Layer):
    """Has a Python attribute, which a graph holds as a constant."""

    factor = 1.0

    def call(self, x: Any) -> Any:
        return x * self.factor


def model() -> Any:
    keras.utils.set_random_seed(7)
    made = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, activation="tanh", name="first"),
            Scaled(name="scaled"),
            keras.layers.Dense(1),
        ]
    )
    made.compile("adam", "mse")
    return made


def fit(made: Any, cut: int | None, *hooks: Any, **arguments: Any) -> list[Any]:
    elastic = [] if cut is None else [ElasticCallback(micro_batch_size=cut)]
    given = {"batch_size": 16, "epochs": 2, "shuffle": False, "verbose": 0, **arguments}
    history = made.fit(X, Y, validation_data=(X, Y), callbacks=[*elastic, *hooks], **given)
    return [*map(np.asarray, made.get_weights()), *history.history.values()]


class Freeze(keras.callbacks.Callback):
    def __init__(self, hook: str) -> None:
        super().__init__()
        setattr(self, hook, self._freeze)

    def _freeze(self, *position: Any, **_: Any) -> None:
        if position[0] != 0:
            self.model.get_layer("first").trainable = False


def frozen(made: Any) -> None:
    made.get_layer("first").trainable = False


def scaled(made: Any) -> None:
    made.get_layer("scaled").factor = 3.0


def with_another_loss(made: Any) -> None:
    made.loss = "mae"


def run_eagerly(made: Any) -> None:
    made.run_eagerly = True


def drawn_from(made: Any) -> None:
    """Keras makes its global generator of random numbers."""
    keras.random.normal((2,))


CHANGES: dict[str, Callable[[Any], None]] = {
    "trainable": frozen,
    "an attribute of a layer": scaled,
    "the loss": with_another_loss,
    "run_eagerly": run_eagerly,
    "the global generator": drawn_from,
}


def results(change: str, *cuts: int | None) -> list[Any]:
    """After a `fit`, after the change and a second one, and after `compile` and a third one."""
    made = model()
    found = fit(made, cuts[0])
    CHANGES[change](made)
    found += fit(made, cuts[1])
    made.compile("adam", "mse")
    return found + fit(made, cuts[1])


@pytest.mark.parametrize(
    ("change", "second_cut"), [*((change, 4) for change in CHANGES), ("trainable", 8)]
)
def test_a_change_between_two_fits_counts_after_compile_only(change: str, second_cut: int) -> None:
    found, expected = results(change, 4, second_cut), results(change, None, None)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_steps_are_traced_once_for_several_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    from hvd_elastic_keras.step import traced_step

    made, steps = model(), []
    original = traced_step.capture
    monkeypatch.setattr(
        traced_step, "capture", lambda *a, **k: steps.append(1) or original(*a, **k)
    )
    for _ in range(3):
        fit(made, 4)
    assert len(steps) == 2, "one for training, one for evaluation"


def test_a_layer_that_a_callback_freezes_in_the_middle_trains_on_as_with_keras() -> None:
    found, expected = (fit(model(), cut, Freeze("on_epoch_begin")) for cut in (4, None))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


class MakeAgain(keras.callbacks.Callback):
    """Lets Keras trace again in the middle of `fit`, as scripts that unfreeze layers do."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self._how = how

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        if epoch == 1:
            if self._how == "compile":
                self.model.compile("sgd", "mae")
                self.model.make_train_function()
            else:
                self.model.make_train_function(force=True)


@pytest.mark.parametrize("how", ["compile", "make_train_function"])
def test_a_callback_that_makes_keras_trace_again_is_refused(how: str) -> None:
    """The steps stayed as they were, and the losses of a new `compile` were 0."""
    made = model()
    with pytest.raises(ConfigurationError, match="called compile or make_train_function"):
        fit(made, 4, MakeAgain(how))


def test_a_layer_that_a_callback_freezes_before_the_first_step_is_refused() -> None:
    """Keras, which traces after that, would see it."""
    begins = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: frozen(made))
    made = model()
    with pytest.raises(ConfigurationError, match=r"changed trainable of first.* Set it before"):
        fit(made, 4, begins)
