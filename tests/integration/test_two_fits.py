"""A script with two `fit`s of one model: a worker may join in the second one and train it alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from tests.harness.fault_model import FaultPoint
from tests.harness.faults import Fault
from tests.harness.fit_job import FitJob, FitResult, gate, kill_of_root
from tests.harness.fit_scenario import Scenario, scenario
from tests.harness.recorded_fit import Script
from tests.harness.small_classifier import BATCH, SIZE, VALIDATION, arrays, classifier, examples


class Freezes(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is untyped
    """A layer, in the midst of a training, and without compiling the model anew."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            self.model.layers[0].trainable = False


@scenario(plain=True)
def freezes_without_compile(script: Script) -> None:
    """Plain Keras goes on training the layer, in the second `fit`, too."""
    model = classifier(FaultPoint(), jit_compile=False)
    script.fit(model, **arrays(epochs=3), callbacks=(Freezes(),))
    script.let_fail("between")
    script.fit(model, **arrays(epochs=3))


@scenario(plain=False)
def two_fits(script: Script) -> None:
    """Of one model, with `evaluate` and `predict` before, between and after."""
    model = classifier(FaultPoint(), jit_compile=False)
    script.evaluate_and_predict(model)
    script.fit(model, **arrays(epochs=3, validation_data=VALIDATION))
    script.evaluate_and_predict(model)
    script.let_fail("between")
    script.fit(model, examples().shuffle(SIZE, seed=5).batch(BATCH), epochs=3)
    script.evaluate_and_predict(model)


def test_a_joiner_of_the_second_fit_ends_with_both_although_the_others_are_killed(
    tmp_path: Path, fit_alone: Callable[[Scenario], FitResult]
) -> None:
    between = Fault("between", "between", 1)
    plan = [between, gate(20), kill_of_root("train", step=30, size=2)]
    with FitJob(tmp_path, two_fits, "--num_workers=2", plan=plan) as job:
        job.let_join("gate")
        job.finish_with(["w2"], fit_alone(two_fits))
        rounds = [(e["training"], e["members"]) for e in job.events("round_running")]
        assert rounds[0] == (1, ["w0", "w1"])
        assert rounds[-2:] == [(2, ["w0", "w2"]), (2, ["w2"])]


def test_a_layer_frozen_without_compile_trains_on_with_a_joiner_that_has_not_seen_it(
    tmp_path: Path, fit_alone: Callable[[Scenario], FitResult]
) -> None:
    plan = [Fault("between", "between", 1), gate(20)]
    with FitJob(tmp_path, freezes_without_compile, "--num_workers=2", plan=plan) as job:
        job.let_join("gate")
        job.finish_with(["w0", "w2"], fit_alone(freezes_without_compile))
