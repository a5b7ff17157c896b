"""The atomic step in one process, against `keras.Model.fit`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

keras = pytest.importorskip("keras")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras import ElasticCallback, Trainer, TrainingConfig
from hvd_elastic_keras.step import compiled_steps

X = np.random.default_rng(0).random((20, 4), np.float32)
Y = X[:, :1].copy()


class Penalty(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        self.add_loss(keras.ops.mean(keras.ops.square(x)))
        return x


class Counter(keras.layers.Layer):
    def __init__(self, start: int, dtype: str) -> None:
        super().__init__()
        initial = keras.initializers.Constant(start)
        self.count = self.add_weight(shape=(), initializer=initial, dtype=dtype, trainable=False)

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.count.assign(
                keras.ops.cast(keras.ops.cast(self.count, "int64") + 1, self.count.dtype)
            )
        return x


def trained(make: Any, fit: bool = False, **sgd: Any) -> Any:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), *make()])
    model.compile(keras.optimizers.SGD(0.1, **sgd), "mse")
    if fit:
        model.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    else:
        config = TrainingConfig(global_batch_size=8, micro_batch_size=2, shuffle=False)
        Trainer(model, (X, Y), config=config).fit()
    return model


@pytest.mark.parametrize(
    ("make", "sgd"),
    [
        (lambda: [keras.layers.Dense(1, kernel_regularizer="l2")], {}),
        (lambda: [keras.layers.Dense(1), Penalty()], {}),
        (lambda: [keras.layers.Dense(1)], {"use_ema": True, "ema_momentum": 0.5}),
    ],
    ids=["regularizer", "add_loss", "ema"],
)
def test_micro_batches_lead_to_the_weights_of_a_plain_fit(make: Any, sgd: Any) -> None:
    pairs = zip(
        trained(make, **sgd).get_weights(),
        trained(make, fit=True, **sgd).get_weights(),
        strict=True,
    )
    for found, expected in pairs:
        np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("start", "dtype", "expected"),
    [(2**40, "int64", 2**40 + 3), (3, "uint8", 6), (0, "bool", 1)],
)
def test_counters_advance_once_per_step(start: int, dtype: str, expected: int) -> None:
    counter = Counter(start, dtype)
    trained(lambda: [counter, keras.layers.Dense(1)])
    assert int(counter.count.value.numpy()) == expected


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_weights_of_any_float_dtype_are_trained(dtype: str) -> None:
    model = trained(lambda: [keras.layers.Dense(1, dtype=dtype)])
    assert np.isfinite(np.asarray(model.get_weights()[0], np.float32)).all()
    assert np.any(np.asarray(model.get_weights()[1], np.float32) != 0)


@pytest.mark.parametrize(
    ("layer", "num_examples", "as_dataset"),
    [
        (keras.layers.LSTM, 16, False),
        (keras.layers.GRU, 16, False),
        (keras.layers.GRU, 20, False),
        (keras.layers.GRU, 16, True),
    ],
)
def test_a_loop_knows_the_size_of_batches_if_it_does_in_plain_fit(
    layer: Any, num_examples: int, as_dataset: bool
) -> None:
    def weights(*callbacks: Any) -> tuple[list[Any], set[int | None]]:
        sizes = set()

        class Noted(keras.layers.Layer):
            def call(self, x: Any) -> Any:
                sizes.add(x.shape[0])
                return x

        keras.utils.set_random_seed(0)
        inputs = keras.Input((None,), dtype="int32")
        hidden = keras.layers.Embedding(9, 4, mask_zero=True)(inputs)
        hidden = keras.layers.Bidirectional(layer(3, dropout=0.2))(hidden)
        model = keras.Model(inputs, keras.layers.Dense(1)(Noted()(hidden)))
        model.compile("adam", "mse")
        sizes.clear()
        x = np.random.default_rng(0).integers(0, 9, (num_examples, 6))
        data: Any = {"x": x, "y": x[:, :1] / 9, "batch_size": 8}
        if as_dataset:
            data = {"x": tf.data.Dataset.from_tensor_slices((x, data["y"])).batch(8)}
        model.fit(**data, epochs=2, shuffle=False, verbose=0, callbacks=[*callbacks])
        return model.get_weights(), sizes

    plain, plain_sizes = weights()
    found, sizes = weights(ElasticCallback())
    assert sizes == {None, *plain_sizes}
    for value, expected in zip(found, plain, strict=True):
        np.testing.assert_allclose(value, expected, atol=1e-5)


def test_losses_of_outputs_are_weighed_alike_in_all_steps_of_an_epoch() -> None:
    """Some steps may be taken with others, in a graph that does not know the size of batches."""
    inputs = keras.Input((4, 1))
    hidden = keras.layers.LSTM(3)(inputs)
    outputs = {name: keras.layers.Dense(1, name=name)(hidden) for name in ("a", "b")}
    model = keras.Model(inputs, outputs)
    model.compile("sgd", {"a": "mse", "b": "mae"})
    x, y = np.ones((16, 4, 1)), np.ones((16, 1))
    model.fit(x, {"a": y, "b": y}, batch_size=8, verbose=0, callbacks=[ElasticCallback()])
    (step,) = compiled_steps._kept_with(model).made.values()
    assert step.has_one_size
    assert step._own_graph_of_full_batch is step._own_graph
