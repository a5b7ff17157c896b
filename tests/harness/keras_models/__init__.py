"""The table: models and input pipelines as people write them, each named by a short sentence."""

from tests.harness.keras_models import (
    execution,
    features,
    functions,
    late_losses,
    losses,
    metrics,
    odd_batches,
    randomness,
    sequences,
    structures,
    train_steps,
    unbuilt,
    whole_batches,
)
from tests.harness.keras_models.case import Case

FAMILIES = (
    losses,
    late_losses,
    metrics,
    randomness,
    sequences,
    features,
    functions,
    structures,
    train_steps,
    unbuilt,
    whole_batches,
    odd_batches,
    execution,
)


def all_cases() -> dict[str, Case]:
    """Returns all cases, by name.

    Raises:
      ValueError: if two have the same name.
    """
    cases: dict[str, Case] = {}
    for family in FAMILIES:
        twice = cases.keys() & family.CASES.keys()
        if twice:
            raise ValueError(f"Cases named {sorted(twice)} are in two families.")
        cases.update(family.CASES)
    return cases
