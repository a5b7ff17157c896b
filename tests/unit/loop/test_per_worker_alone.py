"""`batch="per_worker"` in one process: the learning rate of the step, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
pytest.importorskip("horovod.tensorflow")
tf = pytest.importorskip("tensorflow")

from hvd_elastic_keras import ElasticCallback, Trainer, TrainingConfig
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.keras_internals.learning_rate import scaled

X = np.random.default_rng(0).random((44, 4), np.float32)
Y = X[:, :1] - X[:, 1:2]


def several_optimizers(rate: float) -> Any:
    if not hasattr(keras.optimizers, "MultiOptimizer"):
        pytest.skip("this release of Keras has no MultiOptimizer")
    return keras.optimizers.MultiOptimizer(lambda variable: keras.optimizers.SGD(rate))


OPTIMIZERS = {
    "SGD": lambda rate: keras.optimizers.SGD(rate, momentum=0.9),
    "AdamW": lambda rate: keras.optimizers.AdamW(rate, weight_decay=0.1),
    "loss scale": lambda rate: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(rate), initial_scale=1.0, dynamic_growth_steps=100
    ),
    "accumulation": lambda rate: keras.optimizers.SGD(rate, gradient_accumulation_steps=2),
    "schedule": lambda rate: keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(rate, 1, 0.5)
    ),
    "several": several_optimizers,
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_an_optimizer_uses_its_rate_times_the_scale_and_keeps_its_own(kind: str) -> None:
    scale, traces = tf.Variable(3.0), []
    found, expected = keras.Variable([1.0, -2.0]), keras.Variable([1.0, -2.0])
    one, other = OPTIMIZERS[kind](0.01), OPTIMIZERS[kind](0.03)
    one.build([found])
    other.build([expected])

    @tf.function(autograph=False)
    def step() -> None:
        traces.append(1)
        with scaled([one], scale):
            one.apply([tf.constant([0.5, 0.25])], [found])

    for _ in range(4):
        step()
        other.apply([tf.constant([0.5, 0.25])], [expected])
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-6)
    assert not np.allclose(found.numpy(), [1.0, -2.0])
    scale.assign(0.0)
    before = found.numpy()
    if kind != "SGD":  # its velocity continues
        step()
        np.testing.assert_allclose(found.numpy(), before, rtol=1e-6)
    assert len(traces) == 1
    if kind not in ("several", "schedule"):
        assert float(one.learning_rate) == pytest.approx(0.01)


def linear_model(rate: float = 0.1, accumulation: int | None = None, **arguments: Any) -> Any:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.set_weights([np.full((4, 1), 0.1, np.float32), np.zeros(1, np.float32)])
    optimizer = keras.optimizers.SGD(rate, gradient_accumulation_steps=accumulation)
    model.compile(optimizer, "mse", **arguments)
    return model


def weights_after(
    batches: list[slice], rates: list[float], accumulation: int = 1
) -> list[np.ndarray]:
    """Returns weights of gradient descent in NumPy.

    A step applies the mean over `accumulation` batches, with the last one's rate.
    """
    kernel, bias = np.full((4, 1), 0.1), np.zeros(1)
    gradients = []
    for batch, rate in zip(batches, rates, strict=True):
        x, y = X[batch].astype(float), Y[batch].astype(float)
        error = 2 * (x @ kernel + bias - y) / len(x)
        gradients.append((x.T @ error, error.sum(0)))
        if len(gradients) == accumulation:
            by_kernel, by_bias = (sum(g) / accumulation for g in zip(*gradients, strict=True))
            kernel, bias = kernel - rate * by_kernel, bias - rate * by_bias
            gradients = []
    return [kernel, bias]


@pytest.mark.parametrize(
    ("rule", "warm_up", "scales"),
    [
        ("linear", 4, [1.0, 1.25, 1.5, 1.75, 2.0, 2.0]),
        ("linear", 0, [2.0] * 6),
        ("sqrt", 0, [2**0.5] * 6),
        ("none", 4, [1.0] * 6),
    ],
)
def test_a_worker_alone_trains_its_own_batch_with_the_scaled_rate(
    rule: str, warm_up: int, scales: list[float]
) -> None:
    model = linear_model()
    config = TrainingConfig(
        global_batch_size=8,
        batch="per_worker",
        batch_size_per_worker=16,
        lr_scaling=rule,
        lr_warm_up_steps=warm_up,
        epochs=2,
        shuffle=False,
    )
    Trainer(model, (X, Y), config=config).fit()
    batches = [slice(0, 16), slice(16, 32), slice(32, 44)] * 2
    expected = weights_after(batches, [0.1 * scale for scale in scales])
    for found, value in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(found, value, atol=1e-6)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.1)


def test_a_rate_is_scaled_in_the_step_that_applies_what_others_have_accumulated() -> None:
    model = linear_model(accumulation=2)
    config = TrainingConfig(
        global_batch_size=8,
        batch="per_worker",
        batch_size_per_worker=16,
        lr_warm_up_steps=4,
        epochs=2,
        shuffle=False,
    )
    Trainer(model, (X, Y), config=config).fit()
    batches = [slice(0, 16), slice(16, 32), slice(32, 44)] * 2
    scales = [1.0, 1.25, 1.5, 1.75, 2.0, 2.0]
    expected = weights_after(batches, [0.1 * scale for scale in scales], accumulation=2)
    for found, value in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(found, value, atol=1e-6)


def test_trainings_of_either_kind_may_follow_one_another() -> None:
    """Each training has its own step. A step of a global batch does not read the scale."""
    model = linear_model()
    grows = TrainingConfig(
        global_batch_size=22,
        batch="per_worker",
        batch_size_per_worker=44,
        lr_warm_up_steps=0,
        shuffle=False,
    )
    for config in (grows, TrainingConfig(global_batch_size=44, shuffle=False), grows):
        Trainer(model, (X, Y), config=config).fit()
    expected = weights_after([slice(0, 44)] * 3, [0.2, 0.1, 0.2])
    for found, value in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(found, value, atol=1e-6)


@pytest.mark.parametrize("kind", ["arrays", "dataset", "unknown length", "generator"])
def test_fit_alone_is_plain_fit_with_batch_norm_too(kind: str) -> None:
    """No batch is shared, so no batch is cut."""

    def data() -> dict[str, Any]:
        batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(10)
        if kind == "arrays":
            return {"x": X, "y": Y, "batch_size": 10, "shuffle": False}
        if kind == "unknown length":
            batches = batches.filter(lambda x, y: True)
        if kind == "generator":
            return {"x": (batch for batch in list(batches) * 1), "epochs": 1}
        return {"x": batches}

    results = []
    for callbacks in ([], [ElasticCallback(batch="per_worker")]):
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        )
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
        history = model.fit(**{"epochs": 2, **data()}, callbacks=callbacks, verbose=0)
        results.append([*model.get_weights(), np.asarray(history.history["loss"])])
    for found, value in zip(*results, strict=True):
        np.testing.assert_allclose(found, value, atol=1e-5)


def test_callbacks_see_and_set_the_rate_of_the_reference_batch() -> None:
    model = linear_model()
    seen = []

    def halve(epoch: int, rate: float) -> float:
        seen.append(rate)
        return rate / 2

    config = TrainingConfig(
        global_batch_size=11,
        batch="per_worker",
        batch_size_per_worker=44,
        lr_warm_up_steps=0,
        epochs=3,
        shuffle=False,
    )
    scheduler = keras.callbacks.LearningRateScheduler(halve)
    Trainer(model, (X, Y), config=config, callbacks=[scheduler]).fit()
    assert seen == pytest.approx([0.1, 0.05, 0.025])
    expected = weights_after([slice(0, 44)] * 3, [0.2, 0.1, 0.05])
    for found, value in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(found, value, atol=1e-6)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"batch": "both"}, ["batch='both'", "'global' or 'per_worker'"]),
        ({"lr_scaling": "cubic"}, ["lr_scaling='cubic'", "'sqrt'"]),
        ({"lr_warm_up_steps": -1}, ["lr_warm_up_steps=-1", ">= 0"]),
        ({"lr_warm_up_steps": 0.5}, ["lr_warm_up_steps=0.5", "whole number"]),
        ({"lr_scaling": "sqrt"}, ["lr_scaling='sqrt'", "batch='global'", "leave it out"]),
        ({"lr_warm_up_steps": 5}, ["lr_warm_up_steps=5", "batch='global'", "leave it out"]),
        ({"deterministic": "no"}, ["deterministic='no'", "True or False"]),
        ({"audit": "x"}, ["audit='x'", "True or False"]),
        ({"balance": "fast"}, ["balance='fast'", "'even' or 'speed'"]),
        ({"compression": "fp8"}, ["compression='fp8'", "'none', 'fp16' or 'bf16'"]),
        ({"compression": "fp16", "deterministic": True}, ["compression='fp16'", "Leave one"]),
        ({"seed": -1}, ["seed=-1", "between 0 and"]),
        ({"seed": 1.5}, ["seed=1.5", "whole number"]),
        ({"checkpoint_every_n_epochs": -2}, ["checkpoint_every_n_epochs=-2", ">= 0"]),
        ({"checkpoint_every_n_epochs": True}, ["checkpoint_every_n_epochs=True", "whole number"]),
        ({"micro_batch_size": -1}, ["micro_batch_size=-1", ">= 1"]),
        ({"batch": "per_worker", "deterministic": True}, ["deterministic", "Leave one"]),
        ({"batch": "per_worker", "balance": "speed"}, ["balance='speed'", "Leave one"]),
    ],
)
@pytest.mark.parametrize("make", [TrainingConfig, ElasticCallback])
def test_bad_values_are_refused_with_what_is_expected(
    make: Any, values: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make(**values)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("HVD_ELASTIC_OPTIONS", '{"deterministic": true}', "deterministic=True"),
        ("HVD_ELASTIC_OPTIONS", '{"balance": "speed"}', "balance='speed'"),
    ],
)
def test_what_the_launcher_asks_of_a_script_is_refused_too(
    name: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=words):
        ElasticCallback(batch="per_worker")
    with pytest.raises(ConfigurationError, match=words):
        Trainer(linear_model(), (X, Y), config=TrainingConfig(batch="per_worker"))


def test_a_model_that_runs_eagerly_is_trained_the_same() -> None:
    model = linear_model(run_eagerly=True)
    config = TrainingConfig(
        global_batch_size=22,
        batch="per_worker",
        batch_size_per_worker=44,
        lr_warm_up_steps=2,
        epochs=3,
        shuffle=False,
    )
    Trainer(model, (X, Y), config=config).fit()
    expected = weights_after([slice(0, 44)] * 3, [0.1, 0.15, 0.2])
    for found, value in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(found, value, atol=1e-6)


def test_steps_per_epoch_is_refused_with_the_way_out() -> None:
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4).repeat()
    with pytest.raises(ConfigurationError, match=r"steps_per_epoch=5 .*take\(n\)"):
        linear_model().fit(
            data, steps_per_epoch=5, callbacks=[ElasticCallback(batch="per_worker")], verbose=0
        )


@pytest.mark.parametrize("jit_compile", [False, True])
def test_full_batches_of_a_model_with_a_loop_learn_with_the_scaled_rate(jit_compile: bool) -> None:
    def made(rate: float) -> Any:
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((4, 1)), keras.layers.LSTM(3), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(rate), "mse", jit_compile=jit_compile)
        return model

    x, y = X[:40, :, None], Y[:40]  # five batches: plain Keras knows their size
    ours, plain = made(0.1), made(0.05)
    config = TrainingConfig(
        global_batch_size=16, batch="per_worker", batch_size_per_worker=8, shuffle=False
    )
    Trainer(ours, (x, y), config=config).fit()
    plain.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    for found, expected in zip(ours.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_step_that_counts_on_batches_of_one_size_is_refused() -> None:
    model = keras.Sequential([keras.Input(batch_shape=(11, 4)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ConfigurationError, match="counts on batches of one size"):
        model.fit(X, Y, batch_size=11, verbose=0, callbacks=[ElasticCallback(batch="per_worker")])
