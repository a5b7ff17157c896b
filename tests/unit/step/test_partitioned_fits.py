"""The table of models with the partitioned step: 1 and 3 workers train as plain Keras does."""

from __future__ import annotations

import pytest

pytest.importorskip("keras")
pytest.importorskip("horovod.tensorflow")

from tests.harness import partitioned_fit, shared_fit
from tests.harness.keras_models import all_cases

CASES = all_cases()


@pytest.mark.parametrize("name", sorted(CASES))
def test_any_workers_train_as_plain_fit_does(name: str) -> None:
    of = CASES[name]
    plain = shared_fit.plain(of)
    for workers, found in zip((1, 3), partitioned_fit.shared(of), strict=True):
        different = shared_fit.differences(found, plain, of.tolerance, surplus=of.surplus)
        assert not different, f"{workers} workers:\n" + "\n".join(different)
