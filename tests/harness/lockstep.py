"""Runs all workers of a partitioned step in one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_elastic_keras.step.check_step import out_of_order, taken_in_threads
from hvd_elastic_keras.step.partition.captured_step import CapturedStep
from hvd_elastic_keras.step.partition.plan import Analysis


def assert_close(
    found: Any, expected: Any, what: str, exact: float | None = None, least: float = 1.0
) -> None:
    """Asserts that two tensors are equal up to rounding.

    Args:
      exact: tolerance relative to the largest number; None: as the type allows.
      least: the largest number counts as at least this.
    """
    found, expected = np.asarray(found), np.asarray(expected)
    if expected.dtype.kind not in "fc":
        np.testing.assert_array_equal(found, expected, err_msg=what)
        return
    if exact is None:
        exact = 1e-3 if expected.dtype == np.float16 else 1e-4 if expected.itemsize == 4 else 1e-9
    finite = np.abs(expected[np.isfinite(expected)])
    scale = max(least, float(finite.max(initial=0.0)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=exact * scale, err_msg=what)


def take_step(
    captured: CapturedStep,
    analysis: Analysis,
    batch: Sequence[Any],
    shares: Sequence[int],
    *,
    verify: bool = False,
    step_number: int = 0,
    idle: Analysis | None = None,
) -> tuple[list[Any], dict[str, Any]]:
    """Takes one step with as many workers as there are shares of the rows.

    Args:
      verify: whether each decision is checked separately.
      step_number: the step number, as `PartialStep.compute` takes it.
      idle: the plan of workers without rows; None: the plan of all.

    Returns:
      The outputs and the new values of the variables, which are the same on all workers.
    """
    problems: list[str] | None = [] if verify else None
    taken = taken_in_threads(
        captured, analysis, batch, shares, problems=problems, step_number=step_number, idle=idle
    )
    assert not problems, "\n".join(problems)
    assert list(out_of_order(analysis.plan)) == []
    results = [([np.asarray(t) for t in o], _arrays(values)) for o, values in taken]
    for outputs, values in results[1:]:
        for one, other in zip(outputs, results[0][0], strict=True):
            np.testing.assert_array_equal(one, other)
        for name, value in values.items():
            np.testing.assert_array_equal(value, results[0][1][name], err_msg=name)
    return results[0]


def _arrays(values: dict[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(value) for name, value in values.items()}


class AloneCollectives:
    """Collectives of a single worker."""

    def summed(self, tensors: Sequence[Any], name: str, *, rounded: bool = False) -> list[Any]:
        """Returns the worker's own tensors."""
        return [tf.identity(t) for t in tensors]

    def gathered(self, tensors: Sequence[Any], name: str) -> list[Any]:
        """Returns the worker's own rows."""
        return [tf.identity(t) for t in tensors]

    def extreme(self, tensor: Any, kind: str, name: str) -> Any:
        """Returns the worker's own tensor."""
        return tf.identity(tensor)
