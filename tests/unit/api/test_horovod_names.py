"""Names of Horovod's for Keras: each works, or says in one line what to write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_elastic_keras.horovod as hvd
from hvd_elastic_keras import ElasticCallback
from hvd_elastic_keras.api.horovod.fit import is_distributed
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.step.world import world_of_process
from hvd_elastic_keras.worker.rounds import rounds_of_process

X = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
Y = X[:, :1] * X[:, 1:2]
callbacks = hvd.callbacks


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Horovod itself, in a world of one."""
    hvd.init()
    yield
    rounds_of_process().leave()


def model(optimizer: Any, **options: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    net.compile(optimizer, "mse", **options)
    return net


def sgd() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.05, momentum=0.9)


def assert_same(found: keras.Model, expected: keras.Model) -> None:
    for a, b in zip(found.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


# --- DistributedOptimizer ----------------------------------------------------------------


def test_alone_fit_with_a_distributed_optimizer_is_plain_fit(told: list[str]) -> None:
    plain, ours = model(sgd()), model(hvd.DistributedOptimizer(sgd()))
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8).repeat()
    for net in (plain, ours):
        net.fit(dataset, steps_per_epoch=5, epochs=3, verbose=0)
    assert_same(ours, plain)
    assert int(ours.optimizer.iterations) == 15
    assert any("each worker takes the batch" in text for text in told)


def test_one_step_that_makes_variables_is_taken_on_this_worker_alone(told: list[str]) -> None:
    net = model(hvd.DistributedOptimizer(sgd()))
    net.fit(X, Y, steps_per_epoch=1, epochs=1, verbose=0)
    assert int(net.optimizer.iterations) == 1
    assert told == []


def test_in_a_loop_of_its_own_it_averages_over_all_workers() -> None:
    plain, ours = model(sgd()), model(hvd.DistributedOptimizer(sgd()))

    def step(net: keras.Model) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((net(X) - Y) ** 2)
        variables = net.trainable_variables
        gradients = tape.gradient(loss, [v.value for v in variables])
        net.optimizer.apply_gradients(zip(gradients, variables, strict=True))

    for net in (plain, ours):
        net.optimizer.build(net.trainable_variables)
        step(net)
    graph = tf.function(lambda: step(ours)).get_concrete_function().graph.as_graph_def()
    assert str(graph).count('op: "HorovodAllreduce"') == len(ours.trainable_variables)
    step(plain)
    step(ours)
    assert_same(ours, plain)


def test_a_model_with_it_can_be_saved_and_loaded(tmp_path: Path) -> None:
    net = model(hvd.DistributedOptimizer(sgd()))
    net.train_on_batch(X, Y)
    net.save(tmp_path / "model.keras")
    assert not is_distributed(keras.models.load_model(tmp_path / "model.keras").optimizer)
    loaded = hvd.load_model(tmp_path / "model.keras")
    assert is_distributed(loaded.optimizer)
    assert isinstance(loaded.optimizer, keras.optimizers.SGD)
    loaded.train_on_batch(X, Y)
    net.train_on_batch(X, Y)
    assert_same(loaded, net)


@pytest.mark.parametrize(
    ("optimizer", "options", "message"),
    [
        (sgd, {"op": hvd.Sum}, "averages gradients only"),
        (sgd, {"backward_passes_per_step": 4}, "average_aggregated_gradients=True"),
        (sgd, {"process_set": "mine"}, "Leave it out"),
        (lambda: "sgd", {}, r"builtins\.str, expected"),
    ],
)
def test_what_it_cannot_do_is_refused(optimizer: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        hvd.DistributedOptimizer(optimizer(), **options)


def test_passes_that_are_averaged_are_keras_gradient_accumulation() -> None:
    optimizer = hvd.DistributedOptimizer(
        sgd(), backward_passes_per_step=2, average_aggregated_gradients=True
    )
    plain = keras.optimizers.SGD(0.05, momentum=0.9, gradient_accumulation_steps=2)
    ours, expected = model(optimizer), model(plain)
    for _ in range(4):
        ours.train_on_batch(X, Y)
        expected.train_on_batch(X, Y)
    assert_same(ours, expected)


# --- the learning rate -------------------------------------------------------------------


def test_lr_is_the_learning_rate() -> None:
    optimizer = keras.optimizers.Adam(0.001)
    assert float(optimizer.lr) == pytest.approx(0.001)
    tf.keras.backend.set_value(optimizer.lr, 0.5)
    assert float(optimizer.learning_rate) == 0.5
    optimizer.lr = 0.25
    assert float(optimizer.learning_rate) == 0.25
    optimizer.lr.assign(2.0)
    assert float(optimizer.learning_rate) == 2.0


def test_an_optimizer_may_have_an_lr_of_its_own() -> None:
    class Own(keras.optimizers.SGD):
        def __init__(self) -> None:
            super().__init__(0.1)
            self.lr = "mine"

    own = Own()
    assert own.lr == "mine"
    assert float(own.learning_rate) == pytest.approx(0.1)


@pytest.fixture
def four_workers() -> Iterator[None]:
    """What callbacks know of the world."""
    world_of_process().size = 4
    yield
    world_of_process().size = 1


def rates(callback: Any, *, scales: bool, epochs: int, batches: int = 8) -> list[float]:
    """The effective learning rate of each step of 4 workers."""
    net = model(sgd())
    callback.set_model(net)
    callback.on_training(batches, scales)
    callback.on_train_begin({})
    found = []
    for epoch in range(epochs):
        callback.on_epoch_begin(epoch, {})
        for batch in range(batches // 4):
            callback.on_train_batch_begin(batch, {})
            found.append(float(net.optimizer.learning_rate) * (4 if scales else 1))
        logs: dict[str, float] = {}
        callback.on_epoch_end(epoch, logs)
        assert logs["lr"] == pytest.approx(found[-1])
    return found


@pytest.mark.parametrize("scales", [True, False])
def test_the_warm_up_goes_from_the_rate_of_one_worker_to_that_of_all(
    scales: bool, four_workers: None, capsys: pytest.CaptureFixture[str]
) -> None:
    callback = callbacks.LearningRateWarmupCallback(0.01, warmup_epochs=2, verbose=1)
    # (1 + 3 * epoch / 2) * 0.01, where the epoch includes the step.
    expected = [0.0175, 0.025, 0.0325, 0.04, 0.04, 0.04]
    assert rates(callback, scales=scales, epochs=3) == pytest.approx(expected)
    assert capsys.readouterr().out.strip().endswith("warmup to 0.04.")


@pytest.mark.parametrize("scales", [True, False])
def test_a_schedule_multiplies_the_rate_of_all_workers(scales: bool, four_workers: None) -> None:
    stairs = callbacks.LearningRateScheduleCallback(0.01, 0.5, start_epoch=1)
    found = rates(stairs, scales=scales, epochs=3)
    assert found[2:] == pytest.approx([0.04, 0.04, 0.02, 0.02])
    smooth = callbacks.LearningRateScheduleCallback(0.01, lambda e: 1 + e, staircase=False)
    found = rates(smooth, scales=scales, epochs=2)
    assert found == pytest.approx([0.04, 0.06, 0.08, 0.10])


# --- callbacks ---------------------------------------------------------------------------


def test_fit_with_callbacks_of_horovod_is_elastic_and_says_what_they_do_not_do(
    told: list[str],
) -> None:
    plain, ours = model(sgd()), model(sgd())
    plain.fit(X, Y, batch_size=8, epochs=2, verbose=0, shuffle=False)
    ours.fit(
        X,
        Y,
        batch_size=8,
        epochs=2,
        verbose=0,
        shuffle=False,
        callbacks=[
            callbacks.BroadcastGlobalVariablesCallback(0),
            callbacks.MetricAverageCallback(),
            callbacks.LearningRateWarmupCallback(0.05, warmup_epochs=1),
        ],
    )
    assert_same(ours, plain)
    assert sum("as with Horovod" in text for text in told) == 1


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (callbacks.BestModelCheckpoint, r"ModelCheckpoint\(path"),
        (lambda: callbacks.BroadcastGlobalVariablesCallback(0, "", [1]), "Leave them out"),
        (lambda: callbacks.LearningRateScheduleCallback(None, 1.0), "Give the learning rate"),
        (lambda: hvd.elastic.CommitStateCallback(None), r"hvd\.elastic\.KerasState\("),
        (hvd.SyncBatchNormalization, r"keras\.layers\.BatchNormalization"),
        (lambda: hvd.PartialDistributedGradientTape(None), "DistributedGradientTape"),
        (lambda: hvd.BroadcastGlobalVariablesHook(0), "Leave it out"),
        (
            lambda: model("sgd").fit(
                X, Y, callbacks=[ElasticCallback(), callbacks.LearningRateWarmupCallback(0.1)]
            ),
            "Leave one of the two out",
        ),
    ],
)
def test_what_cannot_work_says_what_to_write(use: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as raised:
        use()
    assert "\n" not in str(raised.value)


def test_state_callbacks_outside_of_a_function_are_refused_before_the_first_step() -> None:
    net = model(sgd())
    state = hvd.elastic.KerasState(net, epoch=0)
    with pytest.raises(ConfigurationError, match=r"UpdateEpochStateCallback .*elastic\.run"):
        net.fit(X, Y, callbacks=[hvd.elastic.UpdateEpochStateCallback(state)], verbose=0)
    assert int(net.optimizer.iterations) == 0


def test_fit_in_a_function_keeps_the_state_and_horovod_is_still_there_afterwards() -> None:
    plain, ours = model(sgd()), model(sgd())
    plain.fit(X, Y, batch_size=8, epochs=3, verbose=0, shuffle=False)
    state = hvd.elastic.KerasState(ours, batch=0, epoch=0)

    @hvd.elastic.run
    def train(state: Any) -> int:
        shown = [ElasticCallback(), hvd.elastic.UpdateEpochStateCallback(state)]
        shown += [
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.CommitStateCallback(state),
        ]
        for _ in range(2):
            epochs = 2 - state.epoch % 2 if state.epoch < 2 else 1
            ours.fit(X, Y, batch_size=8, epochs=epochs, callbacks=shown, verbose=0, shuffle=False)
        return int(hvd.size())

    assert train(state) == 1
    assert (state.epoch, state.batch, hvd.is_initialized()) == (3, 0, True)
    assert_same(ours, plain)


def test_other_functions_take_what_horovods_took() -> None:
    hvd.barrier()
    assert float(hvd.allreduce(3.0, "mean of the loss")) == 3.0
    assert float(hvd.allreduce(np.float32(2.0), op=hvd.Sum)) == 2.0
