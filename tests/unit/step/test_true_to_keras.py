"""A table of models and inputs: each trains as plain Keras does, or people are told before.

Each case is trained plain, with `ElasticCallback` and one micro-batch per batch, and in smaller
micro-batches that 1 and 3 workers share in this process (see `tests/harness/shared_fit.py`).
"""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("keras")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras.common.errors import ElasticError
from tests.harness import shared_fit
from tests.harness.keras_models import all_cases, case
from tests.harness.keras_models.case import BATCH, Case
from tests.harness.shared_fit import Outcome

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
WHOLE = "one micro-batch"
ANY_WORKERS = 1e-5
"""Tolerance between numbers of workers, whatever the precision of the model."""


def named(*expectations: case.Expectation) -> list[str]:
    return [name for name, c in CASES.items() if c.expect in expectations]


def each(*expectations: case.Expectation) -> list[Any]:
    """Parameters of a test."""
    marks = {True: [pytest.mark.slow], False: []}
    return [pytest.param(name, marks=marks[name in SLOW]) for name in named(*expectations)]


def assert_equal(found: Outcome, expected: Outcome, of: Case, what: str) -> None:
    __tracebackhide__ = True
    averaged = () if what == WHOLE else of.averaged
    different = shared_fit.differences(
        found, expected, of.tolerance, surplus=of.surplus, averaged=averaged
    )
    assert not different, f"{what}:\n" + "\n".join(different)


def assert_shared(outcomes: list[Outcome], of: Case) -> None:
    """That 1 and 3 workers come to the same, and that people were told what they must know."""
    __tracebackhide__ = True
    alone = outcomes[0]
    for workers, found in zip((1, 3), outcomes, strict=True):
        different = shared_fit.differences(found, alone, ANY_WORKERS)
        assert not different, f"{workers} workers:\n" + "\n".join(different)
        assert_told(found.told, of)


def assert_told(text: str, of: Case) -> None:
    __tracebackhide__ = True
    assert "Traceback" not in text
    if of.told:
        assert re.search(of.told, text), f"expected {of.told!r} to be told, found {text!r}"
    else:
        assert not text, f"expected no warning, found {text!r}"


def refusal(of: Case, micro_batch_size: int | None) -> str:
    """The text with which a training is refused."""
    with pytest.raises(ElasticError) as caught:
        shared_fit.elastic(of, micro_batch_size)
    return str(caught.value)


@pytest.mark.parametrize("name", each(case.SAME))
def test_equal_to_plain_fit_for_every_cut_and_any_workers(name: str) -> None:
    of = CASES[name]
    plain, whole = shared_fit.plain(of), shared_fit.elastic(of, BATCH)
    assert_equal(whole, plain, of, WHOLE)
    outcomes = list(shared_fit.shared(of))
    assert_equal(outcomes[0], plain, of, f"micro-batches of {of.cut}")
    assert_shared(outcomes, of)


@pytest.mark.parametrize("name", each(case.SAME_IN_ONE))
def test_equal_to_plain_fit_in_one_micro_batch_and_told_of_if_cut(name: str) -> None:
    of = CASES[name]
    plain, whole = shared_fit.plain(of), shared_fit.elastic(of, BATCH)
    assert_equal(whole, plain, of, WHOLE)
    outcomes = list(shared_fit.shared(of))
    assert shared_fit.differences(outcomes[0], plain, of.tolerance), "no difference: say SAME"
    assert_shared(outcomes, of)


@pytest.mark.parametrize("name", each(case.OTHER))
def test_another_result_is_told_of_and_the_same_for_every_cut_and_any_workers(name: str) -> None:
    of = CASES[name]
    whole = shared_fit.elastic(of, BATCH)
    assert_told(whole.told, of)
    assert shared_fit.differences(whole, shared_fit.plain(of), of.tolerance), "say SAME"
    outcomes = list(shared_fit.shared(of))
    assert_equal(outcomes[0], whole, of, f"micro-batches of {of.cut}")
    assert_shared(outcomes, of)


@pytest.mark.parametrize("name", each(case.REFUSED))
def test_refused_if_it_is_cut_and_never_wrong(name: str) -> None:
    of = CASES[name]
    assert_told(refusal(of, None), of)
    assert_told(refusal(of, of.cut), of)
    try:
        whole = shared_fit.elastic(of, BATCH)
    except ElasticError as error:
        assert_told(str(error), of)
    else:
        assert_equal(whole, shared_fit.plain(of), of, WHOLE)


@pytest.mark.parametrize("name", each(case.REFUSED_IN_PARTS))
def test_refused_by_default_and_equal_to_plain_fit_in_one_micro_batch(name: str) -> None:
    of = CASES[name]
    assert_told(refusal(of, None), of)
    assert_equal(shared_fit.elastic(of, BATCH), shared_fit.plain(of), of, WHOLE)
    assert_shared(list(shared_fit.shared(of)), of)


def test_fit_leaves_the_random_numbers_of_the_script_as_plain_fit_does() -> None:
    of = CASES["a step of one's own"]
    assert shared_fit.elastic(of, BATCH).following == shared_fit.plain(of).following


def test_slow_ones_are_there() -> None:
    assert set(CASES) >= SLOW
