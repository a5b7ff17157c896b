"""Which layers and variables of a model are trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras

from hvd_elastic_keras.keras_internals.held_objects import layers_of


@dataclasses.dataclass(frozen=True, eq=False)
class Trainable:
    """The attribute `trainable` of all layers and variables of a model at some time."""

    values: Sequence[tuple[Any, bool]]

    @classmethod
    def of(cls, model: keras.Model) -> Trainable:
        """Returns the present values."""
        # Outer layers come first: setting one sets all layers in it.
        owners = [*layers_of(model), *model.variables]
        return cls([(owner, bool(owner.trainable)) for owner in owners])

    @property
    def changed(self) -> list[str]:
        """The names of layers and variables whose value is different now."""
        return [owner.name for owner, value in self.values if bool(owner.trainable) != value]

    def set(self) -> None:
        """Restores the values. Does nothing if no value has changed."""
        if self.changed:
            for owner, value in self.values:
                owner.trainable = value
