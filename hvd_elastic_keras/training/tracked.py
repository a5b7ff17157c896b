"""The TensorFlow variables behind an elastic state, in groups, and how those of two workers match.

Variables have names that depend on what else a process has built. So they are matched by their
place: group, position, shape and dtype.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.random.seed_generator import global_seed_generator

from hvd_elastic_keras.errors import ConfigurationError
from hvd_elastic_keras.training.variables import optimizer_variables, unwrapped

log = logging.getLogger(__name__)

METRICS = "metrics"
"""The one group that may differ: Keras makes the variables of metrics at the first batch."""
Spec = list[Any]
"""Shape and dtype of a variable in terms of JSON: `[[3, 2], "float32"]`."""


@dataclasses.dataclass(frozen=True)
class Tracked:
    """Where the variables of a state come from. They are looked up anew each time."""

    model: keras.Model | None
    optimizer: keras.optimizers.Optimizer | None
    variables: tuple[tf.Variable, ...]

    def groups(self) -> dict[str, list[tf.Variable]]:
        """Each variable once, as `tf.Variable`, in an order that is the same in every process."""
        found: dict[str, Iterable[Any]] = {"variables": self.variables}
        if self.model is not None:
            found["model"] = self.model.variables
            found["seed"] = [global_seed_generator().state]
            found[METRICS] = self.model.metrics_variables
        if self.optimizer is not None:
            found["optimizer"] = optimizer_variables(self.optimizer)
        seen: set[int] = set()
        return {name: _new_ones(variables, seen) for name, variables in found.items()}

    def all(self) -> list[tf.Variable]:
        """All variables, in the order of `groups`."""
        return [v for group in self.groups().values() for v in group]


def specs_of(groups: dict[str, list[tf.Variable]]) -> dict[str, list[Spec]]:
    """Shapes and dtypes by group."""
    return {
        name: [[[int(n) for n in v.shape], v.dtype.name] for v in group]
        for name, group in groups.items()
    }


def empty_tensors(specs: dict[str, list[Spec]]) -> list[tf.Tensor]:
    """Fresh tensors to receive what the specs describe."""
    return [tf.zeros(shape, dtype) for group in specs.values() for shape, dtype in group]


def match(
    mine: dict[str, list[tf.Variable]],
    theirs: dict[str, list[Spec]],
    tensors: Sequence[tf.Tensor],
) -> list[tuple[tf.Variable, tf.Tensor]]:
    """Pairs this worker's variables with the tensors of another.

    Raises:
      ConfigurationError: the other worker has other variables.
    """
    own = specs_of(mine)
    pairs: list[tuple[tf.Variable, tf.Tensor]] = []
    left = list(tensors)
    for name, specs in theirs.items():
        part, left = left[: len(specs)], left[len(specs) :]
        if own.get(name, []) == specs:
            pairs += zip(mine.get(name, []), part, strict=True)
        elif name == METRICS:
            log.info("rank 0 holds other metrics: those of this worker keep their values")
        else:
            raise _mismatch(name, own.get(name, []), specs)
    return pairs


def _mismatch(name: str, mine: list[Spec], theirs: list[Spec]) -> ConfigurationError:
    differing = [f"{a} there, {b} here" for a, b in zip(theirs, mine, strict=False) if a != b]
    first = f"; the first difference is {differing[0]}" if differing else ""
    return ConfigurationError(
        f"The elastic state of rank 0 holds {len(theirs)} variables in the group {name!r}, that of "
        f"this worker {len(mine)}{first}. All workers must build the same model and optimizer "
        "before elastic.run: run one step on the first batch before the state is made."
    )


def _new_ones(variables: Iterable[Any], seen: set[int]) -> list[tf.Variable]:
    result = []
    for variable in map(unwrapped, variables):
        if id(variable) not in seen:
            seen.add(id(variable))
            result.append(variable)
    return result
