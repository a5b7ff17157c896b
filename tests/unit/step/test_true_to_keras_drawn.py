"""Models drawn at random from the parts of the table: equal to plain `fit`, or told before."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

pytest.importorskip("keras")
pytest.importorskip("horovod.tensorflow")

from tests.harness import shared_fit
from tests.harness.keras_models import drawn
from tests.harness.keras_models.drawn import Drawn

NUM_MODELS = 9
TOLERANCE = 2e-5
"""Five layers, momentum and small weights: rounding grows a little beyond that of one layer."""


def models(inner: drawn.Made, losses: drawn.Made) -> st.SearchStrategy[Drawn]:
    """Models of up to four of these layers."""

    def some(names: drawn.Made, most: int) -> st.SearchStrategy[tuple[str, ...]]:
        return st.lists(st.sampled_from(sorted(names)), max_size=most).map(tuple)

    return st.builds(
        Drawn,
        inner=some(inner, 4).filter(bool),
        loss=st.sampled_from(sorted(losses)),
        metrics=st.lists(st.sampled_from(sorted(drawn.METRICS)), max_size=3, unique=True).map(
            tuple
        ),
        optimizer=st.sampled_from(sorted(drawn.OPTIMIZERS)),
        step=st.sampled_from(sorted(drawn.STEPS)),
        data=st.sampled_from(sorted(drawn.DATA)),
        eager=st.sampled_from([False, False, False, True]),
    ).filter(lambda model: not (model.eager and model.step == "own logs"))  # told: see limits.md


# No shrinking: each model takes seconds, and its parts are named.
drawing = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=NUM_MODELS,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def assert_as_plain(model: Drawn, workers: int) -> None:
    __tracebackhide__ = True
    plain, numbers = shared_fit.plain(model.case), (1, workers)
    for number, found in zip(numbers, shared_fit.shared(model.case, numbers), strict=True):
        assert not shared_fit.differences(found, plain, TOLERANCE), f"{number} workers"
        assert not found.told


@pytest.mark.slow
@pytest.mark.timeout(300)
@drawing
@given(model=models(drawn.LAYERS, drawn.LOSSES), workers=st.integers(2, 5))
def test_any_model_of_parts_that_add_up_is_equal_to_plain_fit(model: Drawn, workers: int) -> None:
    assert_as_plain(model, workers)


@pytest.mark.timeout(300)
@settings(drawing, max_examples=NUM_MODELS // 3)
@given(model=models(drawn.LAYERS, drawn.LOSSES), own=st.sampled_from(sorted(drawn.OWN_RANDOM)))
def test_random_numbers_of_tensorflow_are_told_of_and_those_of_any_workers(
    model: Drawn, own: str
) -> None:
    of = dataclasses.replace(model, inner=(*model.inner[:2], own)).case
    alone, shared = shared_fit.shared(of, (1, 3))
    assert not shared_fit.differences(shared, alone, TOLERANCE)
    assert re.search(of.told, alone.told)


@pytest.mark.slow
@pytest.mark.timeout(300)
@settings(drawing, max_examples=NUM_MODELS // 2)
@given(model=models(drawn.LAYERS, drawn.ACROSS_LOSSES) | models(drawn.ACROSS, drawn.LOSSES))
def test_whatever_needs_the_whole_batch_is_equal_to_plain_fit(model: Drawn) -> None:
    assert_as_plain(model, 3)
