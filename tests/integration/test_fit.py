"""`fit` with `ElasticCallback`: joins and kills change neither weights nor logs of any kind of fit.

The expected results come from one undisturbed process, where possible with plain `fit`. Each
scenario combines several features of Keras, so that few jobs cover all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import faults
from tests.harness.fault_model import FaultPoint
from tests.harness.faults import Fault
from tests.harness.fit_job import (
    FitJob,
    FitResult,
    assert_same_logs,
    assert_same_weights,
    gate,
    kill_of_root,
)
from tests.harness.fit_scenario import Scenario, scenario
from tests.harness.recorded_fit import Script
from tests.harness.small_classifier import (
    BATCH,
    LABELS,
    SIZE,
    VALIDATION,
    Arguments,
    Largest,
    X,
    adam,
    arrays,
    classifier,
    compiled,
    examples,
    sgd,
)

Alone = Callable[[Scenario], FitResult]
layers = keras.layers


# --- a late joiner and a kill of rank 0 ---------------------------------------------------


@scenario(plain=False)
def weighted_arrays(script: Script) -> None:
    """Uses preprocessing, batch norm and dropout on shuffled arrays with weights; stops early."""
    normalise = layers.Normalization()
    normalise.adapt(X)
    model = classifier(
        normalise,
        layers.BatchNormalization(momentum=0.9),
        FaultPoint(),
        layers.Dropout(0.3),
        optimizer=sgd(
            learning_rate=keras.optimizers.schedules.ExponentialDecay(0.1, 4, 0.8), clipnorm=0.5
        ),
        weighted_metrics=[keras.metrics.SparseTopKCategoricalAccuracy(2, name="top")],
    )
    stop = keras.callbacks.EarlyStopping(min_delta=10.0, patience=3, restore_best_weights=True)
    weights = np.random.default_rng(1).random(SIZE).astype("float32")
    weighted = arrays(shuffle=True, sample_weight=weights, validation_split=0.25, epochs=6)
    script.fit(model, **weighted, callbacks=(stop,))


class TwoHeads(keras.Model):
    """A subclassed model with two outputs in a dict, which is not built before `fit`."""

    def __init__(self) -> None:
        super().__init__()
        self.fault = FaultPoint()
        self.hidden = layers.Dense(8, activation="tanh")
        self.heads = {"a": layers.Dense(3), "b": layers.Dense(1)}

    def call(self, x: tf.Tensor, training: bool = False) -> dict[str, tf.Tensor]:
        """Returns both outputs."""
        hidden = self.hidden(self.fault(x, training=training))
        return {name: head(hidden) for name, head in self.heads.items()}


@scenario(plain=False)  # Keras starts one step too many at the end of such data
def data_of_unknown_length(script: Script) -> None:
    """Uses several losses and metrics, and learning rates that callbacks set."""
    model = TwoHeads()
    model.compile(
        sgd(),
        loss={"a": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "b": "mae"},
        loss_weights={"a": 1.0, "b": 0.3},
        metrics={"a": ["accuracy"], "b": ["mse", "mae"]},
    )
    both = examples({"a": LABELS, "b": X[:, :1]})
    script.fit(
        model,
        both.shuffle(SIZE, seed=7).filter(lambda x, y: x[2] > -1).batch(BATCH),
        epochs=4,
        validation_data=both.filter(lambda x, y: x[3] > 0).batch(7),
        callbacks=(
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
            keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1, min_delta=10.0),
        ),
    )


class OwnStep(keras.Model):
    """As in "Customizing what happens in fit": has its own `train_step`, trackers and logs."""

    def __init__(self) -> None:
        super().__init__()
        self.fault = FaultPoint()
        self.dense = layers.Dense(3)
        self.tracker = keras.metrics.Mean(name="loss")
        self.mae = keras.metrics.MeanAbsoluteError(name="mae")

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Returns logits."""
        return self.dense(self.fault(x, training=training))

    @property
    def metrics(self) -> list[keras.Metric]:
        """The metrics that `fit` resets."""
        return [self.tracker, self.mae]

    def train_step(self, data: Any) -> Arguments:
        """Works like Keras's own, and adds the loss of the batch to the logs."""
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {**self._results(loss, y, y_pred), "loss_now": loss}

    def test_step(self, data: Any) -> Arguments:
        """Updates the same metrics."""
        x, y = data
        y_pred = self(x, training=False)
        return self._results(self.compute_loss(y=y, y_pred=y_pred), y, y_pred)

    def _results(self, loss: tf.Tensor, y: tf.Tensor, y_pred: tf.Tensor) -> Arguments:
        self.tracker.update_state(loss, sample_weight=tf.shape(y)[0])
        self.mae.update_state(tf.one_hot(y, 3), y_pred)
        return {m.name: m.result() for m in self.metrics}


class Batches(keras.utils.PyDataset):
    """Batches in another order in every epoch, by `on_epoch_end`, as users write it."""

    def __init__(self) -> None:
        super().__init__(workers=2)
        self._order = np.arange(SIZE)
        self._random = np.random.default_rng(3)

    @property
    def num_batches(self) -> int:
        """The number of batches, of which the last one is smaller."""
        return -(-len(self._order) // 20)

    def __getitem__(self, index: int) -> Any:
        """Returns one batch of 20."""
        part = self._order[index * 20 : (index + 1) * 20]
        return X[part], LABELS[part]

    def on_epoch_end(self) -> None:
        """Shuffles the examples."""
        self._random.shuffle(self._order)


@scenario(plain=True)
def py_dataset(script: Script) -> None:
    """Uses the user's `train_step`; batch hooks are called once per three steps."""
    model = OwnStep()
    compiled(model, metrics=None, steps_per_execution=3)
    script.fit(model, Batches(), shuffle=False, epochs=4, validation_data=Batches())


class FaultAtBatches(keras.callbacks.Callback):
    """Lets the faults at "train" happen before a step, outside of a model that XLA compiles."""

    def __init__(self) -> None:
        super().__init__()
        self.finished = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Lets a fault happen, such as a kill."""
        if hvd.is_initialized():
            faults.happen("train", hvd.rank(), hvd.size(), step=self.finished)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts the steps. A joiner gets the number with the rest of the callback's state."""
        self.finished += 1


@scenario(plain=True)
def infinite_dataset(script: Script) -> None:
    """Uses XLA, accumulated gradients, and averages of the weights that replace the weights."""
    averaging = adam(
        gradient_accumulation_steps=3, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=4
    )
    script.fit(
        classifier(optimizer=averaging, jit_compile=True),
        examples().shuffle(SIZE, seed=3).repeat().batch(BATCH),
        steps_per_epoch=5,
        epochs=4,
        validation_data=examples().batch(10).repeat(),
        validation_steps=3,
        callbacks=(FaultAtBatches(),),
    )


@scenario(plain=True)
def eager(script: Script) -> None:
    """Uses eager steps, shuffling, class weights and a later first epoch.

    It validates every second epoch.
    """
    weights = np.random.default_rng(1).random(SIZE).astype("float32")
    script.fit(
        classifier(FaultPoint(), run_eagerly=True),
        **arrays(class_weight={0: 2.0, 1: 0.5, 2: 1.0}, shuffle=True, initial_epoch=2, epochs=6),
        validation_data=(X[:50], LABELS[:50], weights[:50]),
        validation_freq=2,
        validation_batch_size=20,
    )


@scenario(plain=False)
def mixed_float16(script: Script) -> None:
    """Starts with a loss scale that overflows, so that the first steps are skipped."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        # The scale never grows to where a part of a gradient overflows but the whole does not.
        scaled = keras.optimizers.LossScaleOptimizer(sgd(), initial_scale=2.0**21)
        model = classifier(FaultPoint(), optimizer=scaled)
    finally:
        keras.config.set_dtype_policy(before)
    script.fit(model, **arrays(epochs=3, validation_data=VALIDATION))


PLANS: dict[Scenario, list[Fault]] = {
    weighted_arrays: [gate(7), kill_of_root("evaluate", step=15)],
    data_of_unknown_length: [gate(8), kill_of_root("train", step=14)],  # the last step of an epoch
    py_dataset: [gate(5, "evaluate"), kill_of_root("train", step=19)],  # the very last step
    infinite_dataset: [gate(7), dataclasses.replace(kill_of_root("train", 12), action="SIGTERM")],
    eager: [gate(7), kill_of_root("train", step=16)],
    mixed_float16: [gate(4), kill_of_root("train", step=9)],
}


@pytest.mark.slow(but=("weighted_arrays",))
@pytest.mark.parametrize("scenario", PLANS, ids=str)
def test_a_late_joiner_and_a_kill_of_rank_0_change_nothing(
    scenario: Scenario, tmp_path: Path, fit_alone: Alone
) -> None:
    flags = ("--num_workers=2", "--audit", "--all_output")
    with FitJob(tmp_path, scenario, *flags, plan=PLANS[scenario]) as job:
        job.let_join("gate")
        tolerance = 2e-3 if scenario is mixed_float16 else 1e-5  # sums of halves are rounded
        job.finish_with(["w1", "w2"], fit_alone(scenario), tolerance)
        job.assert_audited(len(job.events("epoch_end")))
        rounds = [e["members"] for e in job.events("round_running")]
        assert rounds == [["w0", "w1"], ["w0", "w1", "w2"], ["w1", "w2"]]
        assert job.output.count("workers that join later do not get") == 1
        assert "attributes of callbacks: Forgets.trackers (list of a Tracker). If" in job.output
        assert "[w1] world sizes [(2, 3), (3, 2)]" in job.output
        assert "[w2] world sizes [(3, 2)]" in job.output


# --- undisturbed, and with a kill of rank 0 only ------------------------------------------


def test_three_workers_have_the_result_of_one_and_show_their_progress_once(
    tmp_path: Path, fit_alone: Alone
) -> None:
    with FitJob(tmp_path, weighted_arrays, "--num_workers=3", plan=[]) as job:
        job.finish_with(["w0", "w1", "w2"], fit_alone(weighted_arrays))
        assert len(job.events("round_running")) == 1
        shown = [line.split(" done")[0] for line in job.output.splitlines() if "done" in line]
        assert shown == [f"epoch {n}/6" for n in range(1, 5)]


class StopsAt(keras.callbacks.Callback):
    """Ends the training within an epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stops in the second epoch, after the third step."""
        if int(self.model.optimizer.iterations) == 9:
            self.model.stop_training = True


@scenario(plain=True)
def stops_within_an_epoch(script: Script) -> None:
    """Trains with a user's callback that ends the training."""
    many = arrays(epochs=50, validation_data=VALIDATION)
    script.fit(classifier(FaultPoint()), **many, callbacks=(StopsAt(),))


def test_a_callback_that_stops_within_an_epoch_stops_at_the_step_of_plain_fit(
    tmp_path: Path, fit_alone: Alone
) -> None:
    with FitJob(tmp_path, stops_within_an_epoch, "--num_workers=2", plan=[]) as job:
        job.finish_with(["w0", "w1"], fit_alone(stops_within_an_epoch))
        assert job.events("job_finished")[0]["step"] == 9


@scenario(plain=True)
def metric_that_does_not_add_up(script: Script) -> None:
    """Uses such a metric beside one that adds up."""
    model = classifier(FaultPoint(), metrics=[Largest(), "accuracy"])
    script.fit(model, **arrays(epochs=3, validation_data=VALIDATION))


def test_a_metric_that_does_not_add_up_is_that_of_plain_fit_though_two_of_three_are_killed(
    tmp_path: Path, fit_alone: Alone
) -> None:
    plan = [kill_of_root("train", step=3), kill_of_root("train", step=14, size=2)]
    with FitJob(tmp_path, metric_that_does_not_add_up, "--num_workers=3", plan=plan) as job:
        job.finish()
        rounds = [e["members"] for e in job.events("round_running")]
        assert rounds == [["w0", "w1", "w2"], ["w1", "w2"], ["w2"]]
        expected = fit_alone(metric_that_does_not_add_up)
        found = job.result("w2")
        assert_same_weights(found, expected)
        histories = [dict(result.logs["histories"][0]) for result in (found, expected)]
        assert_same_logs(*histories, "w2")
