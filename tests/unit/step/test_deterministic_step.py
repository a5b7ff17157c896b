"""The deterministic mode in one process: the results of the usual mode, to rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
pytest.importorskip("horovod.tensorflow")

import tensorflow as tf

from hvd_elastic_keras import ElasticCallback, Trainer, TrainingConfig
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.step import deterministic_step
from tests.harness.small_classifier import Largest

X = np.random.default_rng(0).random((22, 4), np.float32)
Y = X[:, :1].copy()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """As if TensorFlow had started with 2 threads; the list tells whether determinism is on."""
    calls: list[str] = []

    def refuse(count: int) -> None:
        raise RuntimeError("cannot be modified after initialization")

    threading = tf.config.threading
    monkeypatch.setattr(threading, "set_intra_op_parallelism_threads", refuse)
    monkeypatch.setattr(threading, "get_intra_op_parallelism_threads", lambda: 0)
    monkeypatch.setattr(
        tf.config.experimental, "enable_op_determinism", lambda: calls.append("determinism")
    )
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "2")
    return calls


def trained(
    deterministic: bool, dtype: str, accumulation: int | None = None, **compile_arguments: Any
) -> tuple[Any, Any]:
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.BatchNormalization(momentum=0.9, dtype=dtype),
            keras.layers.Dropout(0.3, dtype=dtype),
            keras.layers.Dense(1, dtype=dtype),
        ]
    )
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=accumulation)
    if metrics := compile_arguments.pop("metrics", None):
        # New ones: a metric that another model has used begins with what that has left in it.
        compile_arguments["metrics"] = [m if isinstance(m, str) else m() for m in metrics]
    model.compile(optimizer, "mse", **compile_arguments)
    config = TrainingConfig(
        global_batch_size=14, micro_batch_size=2, epochs=2, deterministic=deterministic
    )
    history = Trainer(model, (X, Y), validation=(X[:5], Y[:5]), config=config).fit()
    variables = [*model.variables, *model.optimizer.variables]
    return [np.asarray(v) for v in variables], history.history


@pytest.mark.parametrize(
    ("dtype", "compile_arguments"),
    [
        ("float64", {"accumulation": 3}),  # of 4 steps
        ("bfloat16", {}),
        ("float32", {"run_eagerly": True}),
        ("float32", {"metrics": ["mae", Largest]}),
        ("float32", {"jit_compile": True}),
    ],
    ids=["float64 and accumulation", "bfloat16", "eager", "does not add up", "xla"],
)
def test_weights_and_history_are_those_of_the_usual_mode_to_rounding(
    dtype: str, compile_arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The settings would hold for all tests of this process.
    monkeypatch.setattr(deterministic_step, "enable_op_determinism", lambda: None)
    found, found_history = trained(True, dtype, **compile_arguments)
    expected, expected_history = trained(False, dtype, **compile_arguments)
    tolerance = 1e-2 if dtype == "bfloat16" else 1e-5
    for value, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(
            value.astype(np.float64), other.astype(np.float64), tolerance, tolerance
        )
    assert found_history.keys() == expected_history.keys()
    for name, values in found_history.items():
        np.testing.assert_allclose(values, expected_history[name], tolerance, tolerance)


def test_too_many_threads_are_refused_with_the_remedy(started: list[str]) -> None:
    for make in (
        lambda: ElasticCallback(deterministic=True),
        deterministic_step.enable_op_determinism,
    ):
        with pytest.raises(ConfigurationError) as caught:
            make()
        for words in ("with 2 threads", "needs 1", "TF_NUM_INTRAOP_THREADS=1", "--deterministic"):
            assert words in str(caught.value)
    assert started == []


def test_the_number_of_threads_may_come_from_the_environment(
    started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")
    deterministic_step.enable_op_determinism()
    assert started == ["determinism"]


def test_the_job_may_fix_another_number_of_threads(
    started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HVD_ELASTIC_OPTIONS", '{"deterministic_threads": 2}')
    deterministic_step.enable_op_determinism()
    assert started == ["determinism"]
    monkeypatch.setenv("HVD_ELASTIC_OPTIONS", '{"deterministic_threads": 4}')
    with pytest.raises(ConfigurationError, match=r"with 2 threads .* needs 4"):
        deterministic_step.enable_op_determinism()


def test_the_environment_turns_it_on_for_an_unchanged_script(
    started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ElasticCallback()
    monkeypatch.setenv("HVD_ELASTIC_OPTIONS", '{"deterministic": true}')
    with pytest.raises(ConfigurationError):
        ElasticCallback()
