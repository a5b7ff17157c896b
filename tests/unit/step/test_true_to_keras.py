"""A table of models and inputs: each trains as plain Keras does, or people are told before.

Each case is trained plain, with `ElasticCallback` alone, and by 3 workers in this process (see
`tests/harness/shared_fit.py`).
"""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("keras")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras.common.errors import ConfigurationError
from tests.harness import shared_fit
from tests.harness.keras_models import all_cases, case
from tests.harness.keras_models.case import Case

CASES = all_cases()
SLOW = {
    "compiled by XLA",
    "three steps per execution",
    "a variational autoencoder without call",
    "norms of single examples",
    "a moving mean of the steps before",
    "recurrent dropout",
    "convolutions of all kinds",
    "distillation",
    "images of whole numbers",
    "a variable of texts",
    "a step of one's own, eagerly",
    "a step of one's own with its own trackers",
    "masks in both directions",
    "ragged sequences",
    "two outputs in a list, weighted each",
    "CTC added by a layer as one loss per example",
    "metrics of several classes",
    "every loss for regression has a head",
    "quantised vectors",
    "optimizers, metrics and counters in containers",
    "a loss in compute_loss alone",
    "numbers of double precision",
    "metrics of a confusion matrix",
    "two masked sequences and attention between them",
    "masked places of a sequence have no loss",
    "every loss for classes has a head",
    "circle loss of pairs",
    "two towers with negatives from the batch",
    "a moving mean that takes the batch in",
    "CTC of Keras",
    "features without correlation in the batch",
    "metrics of labels",
    "two views of each example against all others",
    "noise layers",
    "layers add a mean, a sum and a value per example",
    "pictures one after the other",
    "a Masking layer",
    "every loss with a margin has a head",
    "numbers with examples and steps in one place",
    "metrics of regression",
    "a correlation centred by the batch",
    "areas under curves",
    "labelled and unlabelled examples",
    "functions as metrics",
    "batch norm of one's own",
    "a contrastive loss within the batch",
    "the hardest triplets of a batch",
    "a metric that counts pairs by broadcasting",
    "a causal transformer",
    "a step that is a function, eagerly",
    "gradients that are applied if they are finite",
}
"""Those that take longest, and of whose parts others have some."""
ANY_WORKERS = 1e-5
"""Tolerance between numbers of workers, whatever the precision of the model."""
EAGER = "the weight of a sum stands in a list, one for each step"
"""Cannot be traced, so that only one worker can train it."""


def each(expected: case.Expectation) -> list[Any]:
    """Parameters of a test."""
    names = [name for name, c in CASES.items() if c.expect is expected and name != EAGER]
    return [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in names]


def assert_told(text: str, of: Case) -> None:
    __tracebackhide__ = True
    assert "Traceback" not in text
    if of.told:
        assert re.search(of.told, text), f"expected {of.told!r} to be told, found {text!r}"
    else:
        assert not text, f"expected no warning, found {text!r}"


@pytest.mark.parametrize("name", each(case.SAME))
def test_equal_to_plain_fit_for_any_workers(name: str) -> None:
    of = CASES[name]
    plain = shared_fit.plain(of)

    def check(found: shared_fit.Outcome, who: str) -> None:
        different = shared_fit.differences(found, plain, of.tolerance, surplus=of.surplus)
        assert not different, f"{who}:\n" + "\n".join(different)

    ways = ("1 worker", "3 workers", "1 worker in the graph for several workers")
    for way, found in zip(ways, shared_fit.shared(of, in_graph=True), strict=True):
        check(found, way)
        assert_told(found.told, of)


@pytest.mark.parametrize("name", each(case.OTHER))
def test_another_result_is_told_of_and_the_same_for_any_workers(name: str) -> None:
    of = CASES[name]
    alone, several = shared_fit.shared(of)
    assert not shared_fit.differences(several, alone, ANY_WORKERS)
    assert_told(alone.told, of)


def test_a_step_that_only_runs_eagerly_is_for_one_worker() -> None:
    of = CASES[EAGER]
    plain, found = shared_fit.plain(of), shared_fit.shared(of)
    assert not shared_fit.differences(next(found), plain, of.tolerance)
    with pytest.raises(ConfigurationError, match="cannot be compiled"):
        next(found)


def test_fit_leaves_the_random_numbers_of_the_script_as_plain_fit_does() -> None:
    of = CASES["a step of one's own"]
    assert shared_fit.elastic(of).following == shared_fit.plain(of).following


def test_slow_ones_are_there() -> None:
    assert set(CASES) >= SLOW
