"""When the convergence benchmark says that curves do not coincide."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "scripts" / "benchmarks"


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module `convergence_runs`."""
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.delitem(sys.modules, "convergence_runs", raising=False)
    import convergence_runs  # type: ignore[import-not-found]

    return convergence_runs


def run_of(runs: Any, losses: list[float], val_losses: list[float], last_workers: int = 1) -> Any:
    steps = [
        runs.Step(i, 0, float(i), 1.0, last_workers if i else 2, loss, 0.5)
        for i, loss in enumerate(losses)
    ]
    epochs = [runs.Epoch(i, 1.0, 1.0, 0.0, 0.0, loss, 0.5) for i, loss in enumerate(val_losses)]
    change = runs.Change(0.5, 1, 0.1, 0.1, steps_lost=0, micro_batches=[4])
    return runs.Run("usual", 2, 1, [2, 2], steps, epochs, change)


def test_the_largest_difference_of_all_steps_counts(runs: Any) -> None:
    reference = run_of(runs, [2.0, 1.0, 0.5], [1.0, 0.5])
    found = runs.difference(run_of(runs, [2.0, 1.25, 0.375], [1.0, 0.25]), reference)
    assert dataclasses.astuple(found) == (0.25, 0.0, 0.25, 0.0)


def test_curves_of_different_lengths_are_refused(runs: Any) -> None:
    with pytest.raises(ValueError, match="zip"):
        runs.difference(run_of(runs, [2.0], [1.0]), run_of(runs, [2.0, 1.0], [1.0]))


def test_a_difference_at_the_limit_is_allowed_and_one_above_it_is_named(runs: Any) -> None:
    run = run_of(runs, [2.0, 1.0], [1.0])
    allowed = runs.Difference(0.25, 0.0, 0.0, 0.0)
    assert runs.mistakes(run, allowed, allowed) == []
    (mistake,) = runs.mistakes(run, runs.Difference(0.5, 0.0, 0.0, 0.0), allowed)
    assert mistake == (
        "usual, 2 → 1: loss differs by 5.0e-01 from the reference, allowed is 2.5e-01"
    )


def test_a_loss_that_is_not_a_number_does_not_coincide(runs: Any) -> None:
    run = run_of(runs, [2.0, float("nan")], [1.0])
    found = runs.difference(run, run_of(runs, [2.0, 1.0], [1.0]))
    assert len(runs.mistakes(run, found, runs.Difference(1.0, 1.0, 1.0, 1.0))) == 1


def test_a_revocation_that_took_no_workers_away_is_a_mistake(runs: Any) -> None:
    run = run_of(runs, [2.0, 1.0], [1.0], last_workers=2)
    none = runs.Difference(0.0, 0.0, 0.0, 0.0)
    assert runs.mistakes(run, none, none) == ["usual, 2 → 1: the last step was taken by 2 workers"]
