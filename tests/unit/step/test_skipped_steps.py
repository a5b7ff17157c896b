"""Steps that are not finite are left out (`on_nonfinite="skip"`), as if without their data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras import Trainer, TrainingConfig
from hvd_elastic_keras.common.errors import NonFiniteLossError
from hvd_elastic_keras.loop.observers import nonfinite_loss
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.settings.job_options import JobOptions

BATCH = 8
X = np.random.default_rng(0).random((5 * BATCH, 4), np.float32)
Y = X[:, :1].copy()


@pytest.fixture(autouse=True)
def _skips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.OPTIONS, JobOptions(otherwise={"on_nonfinite": "skip"}).encode())


def without_batches(*numbers: int) -> tuple[Any, Any]:
    kept = [i for i in range(len(X)) if i // BATCH not in numbers]
    return X[kept], Y[kept]


def broken(*examples: int, by: float = np.nan) -> tuple[Any, Any]:
    x = X.copy()
    x[list(examples), 1] = by
    return x, Y


class Square(keras.layers.Layer):
    """Infinite gradients come of finite losses: of the square root, at zero."""

    def call(self, x: Any) -> Any:
        return keras.ops.sqrt(keras.ops.square(x))


def model_of(*more: Any, **compiled: Any) -> Any:
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(5, "tanh"), keras.layers.BatchNormalization(), *more]
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1, use_bias=False)])
    optimizer = keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5))
    model.compile(optimizer, "mse", metrics=["mae"], **compiled)
    return model


def trained(data: tuple[Any, Any], model: Any, **config: Any) -> dict[str, list[float]]:
    config = {"global_batch_size": BATCH, "micro_batch_size": BATCH, "shuffle": False, **config}
    return dict(Trainer(model, data, config=TrainingConfig(**config)).fit().history)


@pytest.mark.parametrize("eager", [False, True], ids=["compiled", "eager"])
def test_what_is_skipped_changes_nothing(eager: bool, capsys: pytest.CaptureFixture[str]) -> None:
    data = broken(BATCH + 3, 4 * BATCH, 4 * BATCH + 1)
    expected, found = model_of(), model_of(run_eagerly=eager)
    x, y = without_batches(1, 4)
    plain = expected.fit(x, y, batch_size=BATCH, shuffle=False, epochs=2, verbose=0).history
    history = trained(data, found, epochs=2)
    for mine, other in zip(found.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)
    assert int(found.optimizer.iterations) == int(expected.optimizer.iterations) == 6
    assert history.keys() == plain.keys()
    for name, values in plain.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-5)
    lines = [line for line in capsys.readouterr().out.splitlines() if "was skipped" in line]
    assert [line.partition(" was ")[0] for line in lines] == [
        "warning: step 1 (from 0; step 1 of epoch 1)",
        "warning: step 4 (from 0; step 4 of epoch 1)",
        "warning: step 6 (from 0; step 1 of epoch 2)",
        "warning: step 9 (from 0; step 4 of epoch 2)",
    ]
    assert "of its 8 examples was not finite" in lines[0]


def test_the_first_step_of_an_epoch_may_be_skipped() -> None:
    model = model_of()
    history = trained(broken(0), model, epochs=2)
    assert np.isfinite(history["loss"]).all()
    assert int(model.optimizer.iterations) == 8


def test_a_gradient_that_is_not_finite_is_enough() -> None:
    keras.utils.set_random_seed(0)
    x = np.ones((2 * BATCH, 2), np.float32)
    x[BATCH] = 0.0
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False), Square()])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    history = trained((x, np.ones([2 * BATCH, 1], np.float32)), model)
    assert int(model.optimizer.iterations) == 1
    assert np.isfinite(model.get_weights()[0]).all()
    assert np.isfinite(history["loss"]).all()


def test_gradients_of_a_loss_scale_optimizer_are_left_to_it() -> None:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    # So large that the first gradients overflow: it halves its scale, and takes no step itself.
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), 2.0**127)
    model.compile(optimizer, "mse")
    trained((X * 100, Y * 100), model)
    assert float(optimizer.dynamic_scale) < 2.0**127


def test_a_training_of_which_nothing_is_left_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nonfinite_loss, "MOST_SKIPPED", 7)
    data = broken(*range(len(X)), by=np.inf)
    with pytest.raises(NonFiniteLossError, match="of 7 steps in a row, up to step 6 "):
        trained(data, model_of(), epochs=3)


def test_a_skipped_step_is_in_the_ledger(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        env.OPTIONS, JobOptions(otherwise={"on_nonfinite": "skip", "audit": True}).encode()
    )
    monkeypatch.chdir(tmp_path)
    keras.utils.set_random_seed(0)
    model = model_of()
    config = TrainingConfig(global_batch_size=BATCH, shuffle=False, epochs=1)
    Trainer(model, broken(9), config=config, job_dir=tmp_path).fit()
    lines = (tmp_path / "ledger" / "epoch-0001.jsonl").read_text()
    assert "false" not in lines.lower()
    assert lines.count('"step"') >= 5
