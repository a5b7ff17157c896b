"""What a step gives to the network, counted: all that moves, once, and nothing that cannot move."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
hvd = pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras import Trainer, TrainingConfig
from hvd_elastic_keras.keras_internals.model_variables import variables_of
from hvd_elastic_keras.step.partitioned_step import PartitionedStep
from hvd_elastic_keras.step.step_result import COUNT_AND_FLAGS
from hvd_elastic_keras.worker.membership import Membership

FEATURES, HIDDEN = 6, 50
X = np.random.default_rng(0).random((24, FEATURES), np.float32)
Y = X[:, :1].copy()


class Reduced:
    """Notes the numbers that each collective of a traced step carries."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.collectives: list[int] = []
        for name in ("allreduce", "grouped_allreduce"):
            monkeypatch.setattr(hvd, name, self._noting(getattr(hvd, name)))

    def _noting(self, original: Any) -> Any:
        def noted(given: Any, *arguments: Any, **options: Any) -> Any:
            tensors = given if isinstance(given, list) else [given]
            self.collectives.append(sum(int(np.prod(tensor.shape)) for tensor in tensors))
            return original(given, *arguments, **options)

        return noted


def network(*, frozen: bool) -> Any:
    """A backbone with batch norm, which may be frozen as in transfer learning, and a head."""
    layers = keras.layers
    backbone = keras.Sequential([layers.Dense(HIDDEN, use_bias=False), layers.BatchNormalization()])
    backbone.trainable = not frozen
    model = keras.Sequential([keras.Input((FEATURES,)), backbone, layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def numbers(variables: Iterable[Any]) -> int:
    """So many they hold."""
    return sum(int(np.prod(variable.shape)) for variable in variables)


@pytest.mark.parametrize("frozen", [False, True], ids=["all trained", "backbone frozen"])
def test_one_collective_carries_what_the_step_can_move(
    frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reduced = Reduced(monkeypatch)
    taken = PartitionedStep.warm_up  # else there is no collective

    def warm_up(step: PartitionedStep, batch: Any, **options: bool) -> None:
        taken(step, batch, **{**options, "has_others": True})

    monkeypatch.setattr(PartitionedStep, "warm_up", warm_up)
    model = network(frozen=frozen)
    config = TrainingConfig(global_batch_size=8, micro_batch_size=8)
    Trainer(model, (X, Y), config=config).fit()
    statistics = 0 if frozen else 2 * HIDDEN
    held = variables_of(model)
    others = numbers(held.metrics) - 1 + COUNT_AND_FLAGS  # the rows that a mean counts are known
    assert [n for n in reduced.collectives if n > 1] == [
        numbers(model.trainable_variables) + statistics + others
    ]


def test_a_frozen_backbone_stays_as_it_is_and_the_rest_is_that_of_plain_fit() -> None:
    weights = []
    for plain in (True, False):
        keras.utils.set_random_seed(0)
        model = network(frozen=True)
        if plain:
            model.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
        else:
            config = TrainingConfig(global_batch_size=8, micro_batch_size=2, shuffle=False)
            Trainer(model, (X, Y), config=config).fit()
        weights.append(model.get_weights())
    for expected, found in zip(*weights, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("alone", [True, False])
def test_a_worker_that_begins_with_others_prepares_no_step_alone(
    alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = PartitionedStep._alone
    steps = []

    def noted(self: PartitionedStep, batch: Any, step: int, stop: bool) -> Any:
        steps.append(step)
        return taken(self, batch, step, stop)

    monkeypatch.setattr(Membership, "begins_alone", alone)
    monkeypatch.setattr(PartitionedStep, "_alone", noted)
    config = TrainingConfig(global_batch_size=8, micro_batch_size=2)
    Trainer(network(frozen=False), (X, Y), config=config).fit()
    assert steps == [0, *range(len(X) // 8)][0 if alone else 1 :]
