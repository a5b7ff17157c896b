"""Errors of callbacks as JSON and bytes, from which another worker makes them again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hvd_elastic_keras.common.errors import ElasticError
from hvd_elastic_keras.loop import raised_error


class Pruned(Exception):  # noqa: N818  as Optuna names it
    """An error with values."""


class OfTrial(Exception):  # noqa: N818
    """An error that is made of more than it shows."""

    def __init__(self, trial: Any) -> None:
        super().__init__(f"trial {trial.number}")


class TwoArguments(Exception):  # noqa: N818
    """An error that needs two arguments, of which it shows one."""

    def __init__(self, epoch: int, loss: float) -> None:
        super().__init__(epoch)
        self.loss = loss


@pytest.mark.parametrize(
    "error",
    [Pruned(), Pruned("epoch", np.float32(0.1), (1, None)), ValueError("bad"), KeyError(b"x")],
    ids=repr,
)
def test_an_error_is_made_again_with_its_class_and_values(error: Exception) -> None:
    found = raised_error.unpacked(raised_error.packed(error))
    assert type(found) is type(error)
    assert found.args == error.args


def test_an_error_that_cannot_be_made_again_is_empty() -> None:
    class Local(Exception):  # noqa: N818
        """Found by no name."""

    trial = SimpleNamespace(number=3)
    for error in (Local(), Pruned(object()), TwoArguments(1, 0.5), OfTrial(trial)):
        assert raised_error.packed(error) == []


@pytest.mark.parametrize(
    "values",
    [["os", "system", ["true"]], ["builtins", "KeyboardInterrupt", []], ["none", "E", []]],
    ids=str,
)
def test_nothing_but_an_error_is_made(values: list[Any]) -> None:
    with pytest.raises(ElasticError, match="which this worker does not know"):
        raised_error.unpacked(values)
