"""What travels between workers, with real Horovod of one worker, which rounds as any number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
pytest.importorskip("horovod.tensorflow")

import tensorflow as tf

from hvd_elastic_keras import Trainer, TrainingConfig
from hvd_elastic_keras.data.input.pipeline import Pipeline
from hvd_elastic_keras.data.sources.source import as_source
from hvd_elastic_keras.keras_internals.model_variables import variables_of
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.settings.job_options import JobOptions
from hvd_elastic_keras.settings.options import AUTO, LOOP
from hvd_elastic_keras.step.compiled_steps import compiled_step
from hvd_elastic_keras.step.partition import gradients
from hvd_elastic_keras.step.partition.collectives import WorkerCollectives
from hvd_elastic_keras.step.partition.gradients import parts_of
from hvd_elastic_keras.step.partition.horovod_collectives import HorovodCollectives
from hvd_elastic_keras.step.step_options import StepOptions
from hvd_elastic_keras.worker.horovod_runtime import Communicator

HALVES = {"fp16": tf.float16, "bf16": tf.bfloat16}
SHAPES = [(3, 5), (), (7,)]
ONE_THIRD = 1 / 3
"""What no format of 16 or 32 bits holds."""


@pytest.fixture(autouse=True)
def _horovod() -> Iterator[None]:
    communicator = Communicator("lo", "localhost", 30, master=None)
    communicator.start_alone()
    with communicator.tracing():
        yield
    communicator.shut_down()


def eagerly(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def in_a_graph(function: Callable[..., Any]) -> Callable[..., Any]:
    return tf.function(function, autograph=False)


def values(dtype: tf.DType = tf.float32) -> list[tf.Tensor]:
    random = np.random.default_rng(0)
    return [tf.constant(random.normal(size=shape), dtype) for shape in SHAPES]


@pytest.mark.parametrize("how", [eagerly, in_a_graph])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64], ids=lambda d: d.name)
@pytest.mark.parametrize("compression", list(HALVES))
def test_gradients_are_rounded_and_nothing_else(
    compression: str, dtype: tf.DType, how: Callable[..., Any]
) -> None:
    collectives = HorovodCollectives(compression)
    found = how(lambda: collectives.summed(values(dtype), "rounded", rounded=True))()
    for one, other in zip(found, values(dtype), strict=True):
        assert one.dtype == dtype
        assert one.shape == other.shape
        rounded = tf.cast(tf.cast(other, HALVES[compression]), dtype)
        np.testing.assert_array_equal(one, rounded)
        assert np.any(one.numpy() != other.numpy())
    exact = tf.constant([ONE_THIRD, 2.0**20 + 1], dtype)
    (sums,) = how(lambda: collectives.summed([exact], "exact"))()
    np.testing.assert_array_equal(sums, exact)


@pytest.mark.parametrize(("compression", "others"), [("none", True), ("fp16", False)])
def test_nothing_is_rounded_without_compression_or_others(compression: str, others: bool) -> None:
    collectives = WorkerCollectives(HorovodCollectives(compression), has_others=tf.constant(others))
    found = collectives.summed(values(), "plain", rounded=True)
    for one, other in zip(found, values(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_is_too_large_for_16_bits_becomes_infinite_and_is_seen_as_such() -> None:
    gradients = [tf.constant([1e5, -1e5, 1e-9])]
    found = HorovodCollectives("fp16").summed(gradients, "large", rounded=True)
    np.testing.assert_array_equal(found[0], [np.inf, -np.inf, 0.0])
    found = HorovodCollectives("bf16").summed(gradients, "large", rounded=True)
    np.testing.assert_allclose(found[0], gradients[0], rtol=2.0**-8)


def sizes_of(*megabytes: float) -> list[int]:
    return [int(size * 2**20) for size in megabytes]


@pytest.mark.parametrize(
    ("megabytes", "expected"),
    [
        ([], [[]]),
        ([5, 5, 5], [[0, 1, 2]]),  # small: one collective
        ([16], [[0]]),
        ([8, 8], [[0], [1]]),
        ([0.1, 8, 9, 3], [[0, 1], [2], [3]]),
        ([0.05, 8, 0.01, 9, 3], [[1], [3], [0, 2, 4]]),  # biases and the like wait
        ([10, 10, 10, 10, 10, 10, 10, 10], [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ([100, 1, 1, 1], [[0], [1, 2, 3]]),
        ([1, 1, 1, 100], [[0, 1, 2, 3]]),
    ],
)
def test_large_gradients_travel_in_up_to_four_parts_in_the_order_of_their_making(
    megabytes: list[float], expected: list[list[int]]
) -> None:
    assert parts_of(sizes_of(*megabytes)) == expected


@pytest.mark.parametrize("micro_batches", [LOOP, AUTO])
@pytest.mark.parametrize("accumulation", [None, 2])
def test_sums_that_leave_the_loop_by_themselves_are_those_of_all_micro_batches(
    micro_batches: str, accumulation: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradients, "LEAST_BYTES", 1)
    monkeypatch.setenv(env.OPTIONS, JobOptions(otherwise={"micro_batches": micro_batches}).encode())
    x = np.random.default_rng(0).random((28, 4), np.float32)  # the last batch is smaller
    weights = []
    for trains in (True, False):
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Dense(5, "tanh"), keras.layers.Dense(3), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((4,)), *layers])
        sgd = keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=accumulation)
        model.compile(sgd, "mse")
        if trains:
            config = TrainingConfig(
                global_batch_size=8, micro_batch_size=2, epochs=2, shuffle=False
            )
            Trainer(model, (x, x[:, :1]), config=config).fit()
        else:
            model.fit(x, x[:, :1], batch_size=8, epochs=2, shuffle=False, verbose=0)
        weights.append(model.get_weights())
    for found, expected in zip(*weights, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)


class Noted:
    """Collectives of one worker, which note what is summed together."""

    def __init__(self) -> None:
        self.sums: dict[str, list[tf.Tensor]] = {}

    def summed(
        self, tensors: list[tf.Tensor], name: str, *, rounded: bool = False
    ) -> list[tf.Tensor]:
        """The tensors."""
        self.sums[name] = tensors
        return list(tensors)


def operations_before(tensors: list[tf.Tensor]) -> set[Any]:
    """All that has to be computed for them."""
    todo, seen = [t.op for t in tensors], set()
    while todo:
        op = todo.pop()
        if op not in seen:
            seen.add(op)
            todo += [*(t.op for t in op.inputs), *op.control_inputs]
    return seen


@pytest.mark.parametrize("compression", ["none", "fp16"])
def test_the_last_layers_are_summed_while_the_first_ones_are_computed(
    compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradients, "LEAST_BYTES", 1)
    x = np.ones((8, 32), np.float32)
    dense = [keras.layers.Dense(32, "tanh", name=name) for name in ("first", "second", "third")]
    model = keras.Sequential([keras.Input((32,)), *dense])
    model.compile("sgd", "mse")
    model.train_on_batch(x, x)
    source = Pipeline(as_source((x, x), seed=0, shuffle=False, name="x"), 8, 8)
    options = StepOptions(compression=compression)
    step = compiled_step(model, variables_of(model), source, train=True, options=options)
    noted, found = Noted(), []

    def together(data: Any, numbers: tf.Tensor) -> None:
        place = step.place(numbers)
        taken, _ = step.computed(data, place, WorkerCollectives(noted, place.has_rows))
        found.append(taken.sums.num_early)

    signature = [step._batch.flat_spec, tf.TensorSpec([None], tf.int64)]
    assert step.analysis
    tf.function(together, input_signature=signature, autograph=False).get_concrete_function()
    name = "elastic_train_early_sum" + ("" if compression == "none" else "_half")
    early = [tensors for one, tensors in noted.sums.items() if one.startswith(name)]
    assert len(early) == 2
    assert found == [2]
    *others, last = noted.sums.values()
    products = [sum(op.type == "MatMul" for op in operations_before(t)) for t in (*early, last)]
    assert products == [3 + 1, 3 + 2, 3 + 5]  # three forwards, and what it takes backwards
    if compression == "fp16":  # what waits for all goes out when all is there
        assert [len(t) for t in others] == [1, 1, 1]  # bias and kernel, end to end
        assert operations_before([last[-1]]) <= operations_before(others[-1])
