"""A step that waits for the state in its middle is the same step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras import ElasticCallback
from hvd_elastic_keras.api import prepare
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.settings.job_options import JobOptions
from hvd_elastic_keras.state.cursor import Phase
from hvd_elastic_keras.state.run_state import RunState
from hvd_elastic_keras.step import shared_step
from hvd_elastic_keras.worker.membership import Membership

X = np.random.default_rng(0).random((22, 6), np.float32)
Y = X[:, :1].copy()
layers = keras.layers


class OwnStep(keras.Sequential):
    """With a logged value that no metric holds."""

    def train_step(self, data: Any) -> dict[str, Any]:
        """Keras's own, and more logs."""
        return {**super().train_step(data), "twice": 2.0}


MODELS = {
    "batch norm and dropout": lambda: keras.Sequential(
        [layers.Dense(8), layers.BatchNormalization(), layers.Dropout(0.5), layers.Dense(1)]
    ),
    "a step of its own": lambda: OwnStep([layers.Dense(8), layers.Dense(1)]),
}
OPTIMIZERS = {
    "adam, clipped": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.1),
    "averaged and accumulated": lambda: keras.optimizers.SGD(
        0.1, momentum=0.9, use_ema=True, ema_overwrite_frequency=2, gradient_accumulation_steps=2
    ),
    "of scaled losses": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
}


def trained(make: Any, optimizer: Any) -> tuple[list[Any], dict[str, Any]]:
    """Weights and the history of a training."""
    keras.utils.set_random_seed(1)
    model = make()
    model.build((None, 6))
    model.compile(optimizer(), "mse", metrics=["mae"])
    callbacks = [ElasticCallback(micro_batch_size=4)]
    data = {"x": X, "y": Y, "batch_size": 8, "validation_data": (X[:8], Y[:8])}
    history = model.fit(**data, epochs=2, verbose=0, callbacks=callbacks)
    return model.get_weights(), history.history


def let_all_be_late(monkeypatch: pytest.MonkeyPatch, arrive: Callable[[int], None]) -> None:
    """Every training step is that of a joiner; its state comes by a call with `progress`.

    This joiner has rows: nobody else has them.
    """
    monkeypatch.setattr(shared_step, "without_rows", lambda analysis: analysis)
    monkeypatch.setattr(Membership, "others_train", lambda *_: True)
    monkeypatch.setattr(prepare, "LEAST_LATE_BYTES", 0)
    trains = property(lambda state: state.cursor.phase is Phase.TRAIN)
    monkeypatch.setattr(RunState, "is_late", trains)

    def noted(state: RunState) -> None:
        if state.cursor.phase is Phase.TRAIN:
            arrive(state.cursor.progress)

    monkeypatch.setattr(RunState, "arrive", noted)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_steps_that_wait_for_the_state_are_the_same_steps(
    monkeypatch: pytest.MonkeyPatch, model: str, optimizer: str
) -> None:
    usual = trained(MODELS[model], OPTIMIZERS[optimizer])
    waited: list[int] = []
    let_all_be_late(monkeypatch, waited.append)
    weights, history = trained(MODELS[model], OPTIMIZERS[optimizer])
    assert len(set(waited)) == 6
    for found, expected in zip(weights, usual[0], strict=True):
        np.testing.assert_array_equal(found, expected)
    assert history == usual[1]


def test_the_state_has_come_after_a_step_that_all_leave_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: list[int] = []
    let_all_be_late(monkeypatch, waited.append)
    model = keras.Sequential([keras.Input((6,)), layers.Dense(1)])
    model.compile("sgd", "mse")
    x = X[:16].copy()
    x[0] = np.nan
    monkeypatch.setenv(env.OPTIONS, JobOptions(otherwise={"on_nonfinite": "skip"}).encode())
    callbacks = [ElasticCallback()]
    model.fit(x, Y[:16], batch_size=8, shuffle=False, verbose=0, callbacks=callbacks)
    assert np.isfinite(model.get_weights()[0]).all()
    assert set(waited) == {0, 1}
