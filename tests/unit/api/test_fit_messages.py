"""What `ElasticCallback` says about a `fit` it cannot take over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras import ElasticCallback
from hvd_elastic_keras.api import fit_inputs
from hvd_elastic_keras.common.errors import ConfigurationError, DataError
from hvd_elastic_keras.data.input.of_adapter import FitReader, OrderSeed, input_of
from hvd_elastic_keras.data.plan.fit_passes import Passes, Reader
from hvd_elastic_keras.data.sources.iterators import check_order
from hvd_elastic_keras.keras_internals import fit_call, model_building, release

X = np.zeros((8, 4), "float32")


def model_of(kind: type = keras.Model, **compile_arguments: Any) -> Any:
    inputs = keras.Input((4,))
    model = kind(inputs, keras.layers.Dense(2)(inputs))
    if compile_arguments:
        model.compile(**compile_arguments)
    return model


def adapter_of(dataset: Any) -> Any:
    from keras.src.trainers.data_adapters import get_data_adapter

    return get_data_adapter(x=dataset)


class OtherLoop(keras.Model):
    def make_train_function(self, force: bool = False) -> Any:
        return super().make_train_function(force)


def test_a_model_without_an_optimizer_is_to_be_compiled() -> None:
    with pytest.raises(ConfigurationError, match=r"Call model.compile\(optimizer"):
        model_building.check_fit(model_of())


def test_an_overridden_loop_is_to_become_a_train_step() -> None:
    model = model_of(OtherLoop, optimizer="sgd", loss="mse")
    with pytest.raises(ConfigurationError, match=r"OtherLoop overrides .* Override train_step"):
        model_building.check_fit(model)


def test_two_elastic_callbacks_in_one_fit_are_refused() -> None:
    model = model_of(optimizer="sgd", loss="mse")
    both = [ElasticCallback(audit=True), ElasticCallback()]
    with pytest.raises(ConfigurationError, match="given 2 ElasticCallbacks, expected one"):
        model.fit(X, X[:, :2], callbacks=both, verbose=0)


@pytest.mark.parametrize("of_one", [list, tuple, lambda callbacks: callbacks[0]])
def test_the_class_in_place_of_a_callback_is_refused(of_one: Any) -> None:
    model = model_of(optimizer="sgd", loss="mse")
    with pytest.raises(ConfigurationError, match=r"write ElasticCallback\(\) with brackets"):
        model.fit(X, X[:, :2], callbacks=of_one([ElasticCallback]), verbose=0)


def test_functions_that_run_eagerly_are_refused_before_the_step_is_traced() -> None:
    tf.config.run_functions_eagerly(True)
    try:
        with pytest.raises(ConfigurationError, match=r"run_functions_eagerly.*was called"):
            model_building.check_functions_are_compiled()
    finally:
        tf.config.run_functions_eagerly(False)
    model_building.check_functions_are_compiled()


def test_another_backend_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    with pytest.raises(ConfigurationError, match=r"runs on torch.*KERAS_BACKEND=tensorflow"):
        release.check()


@pytest.mark.parametrize("version", ["2.15.0", "3.7.0", "3.16.0", "4.0.0"])
def test_a_release_outside_the_tested_range_is_named(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keras, "__version__", version)
    with pytest.raises(ConfigurationError, match=f"Keras {version} is installed.*pip install"):
        release.check()


def test_a_caller_that_is_not_fit_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"something else than keras.Model.fit"):
        fit_call.running_fit(None)


def test_a_fit_with_other_names_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_call, "NAMES", (*fit_call.NAMES, "no_such_name"))
    with pytest.raises(ConfigurationError, match=r"has no no_such_name.*pip install"):
        model_of(optimizer="sgd", loss="mse").fit(
            X, X[:, :2], verbose=0, callbacks=[_elastic_callback()]
        )


def _elastic_callback() -> Any:
    from hvd_elastic_keras import ElasticCallback

    return ElasticCallback()


def unordered_options(dataset: Any) -> Any:
    options = tf.data.Options()
    options.deterministic = False
    return dataset.with_options(options)


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        (lambda d: d.shuffle(8), "Give it a seed"),
        (lambda d: d.shuffle(8).map(lambda x: x).batch(2).prefetch(1), "Give it a seed"),
        (unordered_options, "Leave that option out"),
        (
            lambda d: d.map(lambda x: x, num_parallel_calls=2, deterministic=False),
            "Leave that argument out",
        ),
    ],
)
def test_a_dataset_in_another_order_on_each_worker_is_refused(change: Any, remedy: str) -> None:
    tf.random.set_seed(None)
    dataset = change(tf.data.Dataset.from_tensor_slices(X).batch(2))
    with pytest.raises(DataError, match=f"^x is a .*{remedy}"):
        check_order(dataset, "x")


@pytest.mark.parametrize("by", ["argument", "global seed"])
def test_a_seeded_shuffle_is_accepted(by: str) -> None:
    tf.random.set_seed(1 if by == "global seed" else None)
    dataset = tf.data.Dataset.from_tensor_slices(X).shuffle(8, seed=1 if by == "argument" else None)
    check_order(dataset.batch(2), "x")
    tf.random.set_seed(None)


class Unknown:
    """Stands for an adapter of a later Keras."""


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        (Unknown(), "x came as Unknown, expected arrays"),
        (adapter_of(tf.data.Dataset.from_tensors(1.0)), "Use batch"),
        (adapter_of(tf.data.Dataset.from_tensor_slices(X).window(2)), "contains Dataset"),
        (adapter_of(tf.data.Dataset.from_tensor_slices(X[:0]).batch(2)), "x is empty"),
    ],
)
def test_data_that_cannot_be_cut_are_refused(adapter: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        input_of(
            adapter,
            FitReader(
                name="x",
                reader=Reader.TRAINING,
                passes=Passes(),
                index_of=lambda epoch: epoch,
                epochs=1,
                evaluated=[],
            ),
            micro_batch_size=lambda size: size,
            seed=OrderSeed(0, is_given=False),
        )


class DrawsInPython(keras.layers.Layer):
    """Noise from NumPy's own generator: one number for the whole training."""

    def call(self, x: Any) -> Any:
        return x + np.random.normal()


@pytest.mark.parametrize("micro_batch_size", [4, 8])
def test_numpy_in_a_layer_is_told_of(
    micro_batch_size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    model = keras.Sequential([keras.Input((4,)), DrawsInPython(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    callback = ElasticCallback(micro_batch_size=micro_batch_size)
    model.fit(np.ones((8, 4)), np.ones((8, 1)), batch_size=8, verbose=0, callbacks=[callback])
    assert "numpy.random or Python's random" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("train", "validation", "is_told"),
    [
        (lambda d: d.take(4).batch(2), lambda d: d.skip(4).batch(2), True),
        (lambda d: d.batch(2), lambda d: d.take(4).batch(2), True),
        (lambda d: d.batch(2), lambda d: d.batch(4), False),
        (lambda d: d.map(lambda x: x + 1).batch(2), lambda d: d.batch(2), False),
    ],
)
def test_only_data_of_which_a_part_is_left_out_can_move_to_the_validation_data(
    monkeypatch: pytest.MonkeyPatch, train: Any, validation: Any, is_told: bool
) -> None:
    said: list[str] = []
    monkeypatch.setattr(fit_inputs.notices, "tell", said.append)
    shuffled = tf.data.Dataset.from_tensor_slices(X).shuffle(8, seed=1)
    call: Any = SimpleNamespace(
        adapter=adapter_of(train(shuffled)),
        validation=adapter_of(validation(shuffled)),
        steps_per_epoch=None,
    )
    fit_inputs.check_order(call, alone=True)
    assert said == ([f"warning: {fit_inputs.IN_TURNS}"] if is_told else [])


@pytest.mark.parametrize(
    ("above", "is_told"),
    [(lambda d: d, False), (lambda d: d.shuffle(8, seed=2), True)],
    ids=["kept", "shuffled again"],
)
def test_examples_whose_order_a_cache_keeps_do_not_move(
    monkeypatch: pytest.MonkeyPatch, above: Any, is_told: bool
) -> None:
    said: list[str] = []
    monkeypatch.setattr(fit_inputs.notices, "tell", said.append)
    whole = above(tf.data.Dataset.from_tensor_slices(X).shuffle(8, seed=1).cache())
    train, validation = (adapter_of(d.batch(2)) for d in (whole.take(4), whole.skip(4)))
    call: Any = SimpleNamespace(adapter=train, validation=validation, steps_per_epoch=None)
    fit_inputs.check_order(call, alone=False)
    assert said == ([f"warning: {fit_inputs.IN_TURNS}"] if is_told else [])
    in_part: Any = SimpleNamespace(adapter=train, validation=validation, steps_per_epoch=1)
    with pytest.raises(DataError, match="steps_per_epoch was given: the cache may not be complete"):
        fit_inputs.check_order(in_part, alone=False)
