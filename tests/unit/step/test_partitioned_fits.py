"""The table of models with the partitioned step: 1 and 3 workers train as plain Keras does.

These are the cases that the other step refuses or computes differently, and one of each other kind.
"""

from __future__ import annotations

import pytest

pytest.importorskip("keras")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras.common.errors import ConfigurationError
from tests.harness import partitioned_fit, shared_fit
from tests.harness.keras_models import all_cases, case

ANY_WORKERS = 1e-5
CASES = all_cases()
NOT_TAKEN = {
    "a loss with reduction none": "is refused before there is a step",
    "a stateful layer": "has a fixed batch size, which is refused",
    "sparse numbers": "are refused by the input",
    "two adversaries with an optimizer each": "have optimizers that are built with all variables",
    "the weight of a sum stands in a list, one for each step": "cannot be traced",
}
KINDS = {
    "a step of one's own, eagerly",
    "labelled and unlabelled examples",
    "masked places of a sequence have no loss",
    "metrics of a confusion matrix",
    "optimizers, metrics and counters in containers",
    "pictures one after the other",
    "ragged sequences",
    "three steps per execution",
    "weights that are moved by hand",
}
DRAWN = {
    name for name, of in CASES.items() if of.expect is case.OTHER and "tf.random" in of.told
} | {"TensorFlow's dropout", "tf.random in a condition"}
"""Stateful draws: other numbers than in plain `fit`, the same for any workers."""
WON = {name for name, of in CASES.items() if of.expect is not case.SAME}


@pytest.mark.parametrize("name", sorted((WON | KINDS) - DRAWN - NOT_TAKEN.keys()))
def test_any_workers_train_as_plain_fit_does(name: str) -> None:
    of = CASES[name]
    plain = shared_fit.plain(of)
    for workers, found in zip((1, 3), partitioned_fit.shared(of), strict=True):
        different = shared_fit.differences(found, plain, of.tolerance, surplus=of.surplus)
        assert not different, f"{workers} workers:\n" + "\n".join(different)


@pytest.mark.parametrize("name", sorted(DRAWN))
def test_what_is_drawn_from_a_state_is_the_same_for_any_workers(name: str) -> None:
    of = CASES[name]
    alone, several = partitioned_fit.shared(of)
    assert not shared_fit.differences(several, alone, ANY_WORKERS)
    assert "not those of plain fit" in alone.told


def test_a_step_that_only_runs_eagerly_is_for_one_worker() -> None:
    of = CASES["the weight of a sum stands in a list, one for each step"]
    plain, found = shared_fit.plain(of), partitioned_fit.shared(of)
    assert not shared_fit.differences(next(found), plain, of.tolerance)
    with pytest.raises(ConfigurationError, match="cannot be compiled"):
        next(found)
