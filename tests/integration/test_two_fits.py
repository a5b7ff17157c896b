"""Scripts with several `fit`s of one model. A worker may join in a later one and train it alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tests.harness.fault_model import FaultPoint
from tests.harness.faults import Fault
from tests.harness.fit_job import FitJob, FitResult, gate, kill_of_root
from tests.harness.fit_scenario import Scenario, scenario
from tests.harness.recorded_fit import Script
from tests.harness.small_classifier import (
    BATCH,
    LABELS,
    SIZE,
    VALIDATION,
    X,
    arrays,
    classifier,
    examples,
)

Alone = Callable[[Scenario], FitResult]


class Freezes(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is untyped
    """Freezes a layer in the middle of a training, without compiling the model again."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            self.model.layers[0].trainable = False


@scenario(plain=True)
def freezes_without_compile(script: Script) -> None:
    """Fits twice. Plain Keras still trains the layer, also in the second `fit`."""
    model = classifier(FaultPoint(), jit_compile=False)
    script.fit(model, **arrays(epochs=3), callbacks=(Freezes(),))
    script.let_fail("between")
    script.fit(model, **arrays(epochs=3))


@scenario(plain=False)
def two_fits(script: Script) -> None:
    """Fits one model twice, with `evaluate` and `predict` before, between and after."""
    model = classifier(FaultPoint(), jit_compile=False)
    script.evaluate_and_predict(model)
    script.fit(model, **arrays(epochs=3, validation_data=VALIDATION))
    script.evaluate_and_predict(model)
    script.let_fail("between")
    script.fit(model, examples().shuffle(SIZE, seed=5).batch(BATCH), epochs=3)
    script.evaluate_and_predict(model)


def test_a_joiner_of_the_second_fit_ends_with_both_although_the_others_are_killed(
    tmp_path: Path, fit_alone: Alone
) -> None:
    between = Fault("between", "between", 1)
    plan = [between, gate(20), kill_of_root("train", step=30, size=2)]
    with FitJob(tmp_path, two_fits, "--num_workers=2", plan=plan) as job:
        job.let_join("gate")
        job.finish_with(["w2"], fit_alone(two_fits))
        rounds = [(e["training"], e["members"]) for e in job.events("round_running")]
        assert rounds[0] == (1, ["w0", "w1"])
        assert rounds[-2:] == [(2, ["w0", "w2"]), (2, ["w2"])]


# --- data that go on from one fit to the next -----------------------------------------------


class Batches(keras.utils.PyDataset):
    """Batches that depend on how often their hooks have been called."""

    def __init__(self) -> None:
        super().__init__()
        self._order = np.arange(SIZE)
        self._random = np.random.default_rng(3)
        self._scale = 1.0

    @property
    def num_batches(self) -> int:
        """The number of batches, all of which are full."""
        return SIZE // BATCH

    def __getitem__(self, index: int) -> Any:
        """Returns a batch."""
        rows = self._order[index * BATCH : (index + 1) * BATCH]
        return X[rows] * self._scale, LABELS[rows]

    def on_epoch_begin(self) -> None:
        """Changes the scale."""
        self._scale *= 1.02

    def on_epoch_end(self) -> None:
        """Shuffles the examples."""
        self._random.shuffle(self._order)


@scenario(plain=True)
def one_for_both(script: Script) -> None:
    """Uses the same data for training and validation, twice: a `PyDataset`, and a dataset."""
    model = classifier(FaultPoint())
    batches, tensors = Batches(), examples().shuffle(SIZE, seed=5).batch(BATCH)
    for _ in range(2):
        script.fit(model, batches, epochs=2, validation_data=batches)  # Keras shuffles them too
        script.fit(model, tensors, epochs=2, validation_data=tensors)


def test_a_joiner_of_the_third_fit_has_the_data_as_they_are_in_plain_keras(
    tmp_path: Path, fit_alone: Alone
) -> None:
    plan = [gate(32), kill_of_root("train", step=44)]
    with FitJob(tmp_path, one_for_both, "--num_workers=2", plan=plan) as job:
        job.let_join("gate")
        job.finish_with(["w1", "w2"], fit_alone(one_for_both))
        rounds = [(e["training"], e["members"]) for e in job.events("round_running")]
        assert (3, ["w0", "w1", "w2"]) in rounds
        assert (4, ["w1", "w2"]) in rounds


def generated(seed: int) -> Iterator[Any]:
    """Yields other batches each time, without end."""
    random = np.random.default_rng(seed)
    while True:
        rows = random.permutation(SIZE)[:BATCH]
        yield X[rows], LABELS[rows]


@scenario(plain=False)  # how far Keras reads ahead depends on time
def generators(script: Script) -> None:
    """Lets training and validation continue where the fit before has left them."""
    model = classifier(FaultPoint())
    train, validation = generated(1), generated(2)
    for _ in range(2):
        script.fit(
            *(model, train),
            steps_per_epoch=5,
            epochs=4,
            validation_data=validation,
            validation_steps=3,
            validation_freq=[1, 2, 4],
        )


def test_generators_go_on_in_all_workers_whoever_joins_and_is_lost(
    tmp_path: Path, fit_alone: Alone
) -> None:
    later = Fault("gate2", "train", 0, step=27, action="wait")
    plan = [gate(7), kill_of_root("evaluate", step=10), later]
    with FitJob(tmp_path, generators, "--num_workers=2", plan=plan) as job:
        job.let_join("gate")
        job.let_join("gate2", "w3")
        job.finish_with(["w1", "w2", "w3"], fit_alone(generators))
        rounds = [(e["training"], e["members"]) for e in job.events("round_running")]
        assert (1, ["w0", "w1", "w2"]) in rounds
        assert (2, ["w1", "w2", "w3"]) in rounds


def test_a_layer_frozen_without_compile_trains_on_with_a_joiner_that_has_not_seen_it(
    tmp_path: Path, fit_alone: Alone
) -> None:
    plan = [Fault("between", "between", 1), gate(20)]
    with FitJob(tmp_path, freezes_without_compile, "--num_workers=2", plan=plan) as job:
        job.let_join("gate")
        job.finish_with(["w0", "w2"], fit_alone(freezes_without_compile))


class Pruned(Exception):  # noqa: N818  as Optuna names it
    """Ends a `fit`, and the script goes on."""


class Prunes(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is untyped
    """Ends a training in an epoch: after a batch, or at its end."""

    def __init__(self, epoch: int, batch: int | None = None) -> None:
        super().__init__()
        self._at = (epoch, batch)
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._at == (self._epoch, batch):
            raise Pruned(self._epoch, float(logs["loss"]))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._at == (epoch, None):
            raise Pruned(epoch, float(logs["val_loss"]))


@scenario(plain=True)
def pruned_fits(script: Script) -> None:
    """Leaves some of its trainings by errors of callbacks, which it catches."""
    model = classifier(FaultPoint(), jit_compile=False)
    shuffled, ends = examples().shuffle(SIZE, seed=5).batch(BATCH), []
    for prunes in (Prunes(1, batch=2), None, Prunes(1), None, Prunes(0)):
        try:
            script.fit(
                *(model, shuffled),
                epochs=3,
                validation_data=VALIDATION,
                callbacks=(prunes,) if prunes else (),
            )
        except Pruned as error:
            ends.append(error.args)
        script.evaluate_and_predict(model)
    assert [epoch for epoch, _ in ends] == [1, 1, 0]


def test_a_worker_joins_after_a_fit_that_an_error_has_ended_and_trains_the_rest_alone(
    tmp_path: Path, fit_alone: Alone
) -> None:
    plan = [gate(20), kill_of_root("train", step=44)]
    with FitJob(tmp_path, pruned_fits, "--num_workers=2", plan=plan) as job:
        job.let_join("gate")
        job.finish_with(["w1", "w2"], fit_alone(pruned_fits))
        rounds = [(e["training"], e["members"]) for e in job.events("round_running")]
        assert (2, ["w0", "w1", "w2"]) in rounds
        assert rounds[-1] == (5, ["w1", "w2"])
        assert not [
            e for e in job.events("worker_exited") if e["worker_id"] != "w0" and e["failed"]
        ]
