"""Jobs with partitioned steps end as one process does, whatever happens to their workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness.fault_model import FaultPoint
from tests.harness.faults import Fault
from tests.harness.fit_job import FitJob, FitResult
from tests.harness.fit_scenario import Scenario, scenario
from tests.harness.job import Job, assert_same_weights
from tests.harness.recorded_fit import Script
from tests.harness.small_classifier import BATCH, arrays, examples, sgd

layers = keras.layers


def test_a_kill_and_a_joiner_change_nothing(
    tmp_path: Path, expected_weights: dict[str, np.ndarray]
) -> None:
    """The model has batch norm over each micro-batch, and dropout."""
    plan = [Fault("kill", "train", 1, step=5), Fault("gate", "train", 0, step=12, action="wait")]
    with Job(tmp_path, "--num_workers=3", "--audit", plan=plan) as job:
        job.wait_for_fault("gate")
        job.wait_for("worker_ready", lambda e: e["worker_id"] == "w3")
        job.plan.open_gate("gate")
        job.finish()
        assert job.plan.happened("kill")
        assert [e["world_size"] for e in job.events("round_running")] == [3, 2, 3]
        assert_same_weights(job.weights(), expected_weights)


class Adversaries(keras.Model):
    """Two networks with an optimizer each, a loss of pairs, and one norm to clip gradients by."""

    def __init__(self) -> None:
        super().__init__()
        self.maker = keras.Sequential([layers.Dense(8, activation="tanh"), layers.Dense(6)])
        self.judge = keras.Sequential(
            [FaultPoint(), layers.Dense(8, activation="tanh"), layers.Dense(1)]
        )
        self.other = sgd()

    def build(self, shape: Any) -> None:
        """Builds both networks."""
        self.maker.build(shape)
        self.judge.build(shape)
        self.other.build(self.maker.trainable_variables)

    def call(self, x: Any) -> Any:
        """Returns the judge's output."""
        return self.judge(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        """Trains the judge first, then the maker against the new judge."""
        x, _ = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.judge(x, training=True) - 1.0))
            loss += tf.reduce_mean(tf.square(self.judge(self.maker(x[::-1]))))
        gradients, norm = tf.clip_by_global_norm(
            tape.gradient(loss, self.judge.trainable_variables), 0.1
        )
        self.optimizer.apply(gradients, self.judge.trainable_variables)
        with tf.GradientTape() as tape:
            made = self.maker(x)
            pairs = tf.linalg.norm(made[:, None] - made[None] + 1e-3, axis=-1)
            other = tf.reduce_mean(tf.square(self.judge(made) - 1.0)) - 0.1 * tf.reduce_mean(pairs)
        self.other.apply(tape.gradient(other, self.maker.trainable_variables))
        return {"loss": loss, "maker": other, "norm": norm}


@scenario(plain=True)
def adversaries(script: Script) -> None:
    """Trains in steps of several rounds of collectives.

    A kill in the forward pass happens within one of these rounds.
    """
    model = Adversaries()
    model.build((None, 6))
    model.compile(sgd())
    # Otherwise it would be built for all variables.
    model.optimizer.build(model.judge.trainable_variables)
    script.fit(model, **arrays(epochs=3))


@pytest.mark.parametrize("options", [(), ("--micro_batches=loop",)], ids=["whole", "pieces"])
def test_several_optimizers_and_a_kill_within_a_step_end_like_plain_fit(
    tmp_path: Path, options: tuple[str, ...], fit_alone: Callable[[Scenario], FitResult]
) -> None:
    plan = [Fault("kill", "train", 1, step=3)]
    with FitJob(tmp_path, adversaries, "--num_workers=3", *options, plan=plan) as job:
        job.finish_with(["w0", "w2"], fit_alone(adversaries))
        assert job.plan.happened("kill")


@scenario(plain=True)
def annealed(script: Script) -> None:
    """Trains with a loss and a map that close over variables, which a callback changes."""
    weight, shift = keras.Variable(1.0, trainable=False), tf.Variable(0.0, trainable=False)

    class Anneal(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
            weight.assign(weight * 0.5)
            shift.assign_add(0.5)

    model = keras.Sequential(
        [keras.Input((6,)), FaultPoint(), layers.Dense(8, activation="tanh"), layers.Dense(3)]
    )
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(sgd(), loss=lambda y, x: weight * cross_entropy(y, x))
    data = examples().map(lambda x, y: (x + shift, y)).batch(BATCH)
    script.fit(model, data, epochs=4, callbacks=(Anneal(),))


def test_a_newcomer_gets_variables_that_only_a_callback_changes(
    tmp_path: Path, fit_alone: Callable[[Scenario], FitResult]
) -> None:
    """The newcomer comes in the third epoch, and has not been called after the first two."""
    plan = [Fault("kill", "train", 1, step=3), Fault("gate", "train", 0, step=9, action="wait")]
    flags = ("--num_workers=3", "--max_restarts=1")
    with FitJob(tmp_path, annealed, *flags, plan=plan) as job:
        job.wait_for_fault("gate")
        job.wait_for("worker_ready", lambda e: e["worker_id"] == "w3")
        job.plan.open_gate("gate")
        job.finish_with(["w0", "w2", "w3"], fit_alone(annealed))
