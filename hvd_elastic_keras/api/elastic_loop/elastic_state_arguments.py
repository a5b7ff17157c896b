"""Checks the arguments of an elastic state: models, variables, plain values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.keras_internals.model_variables import can_be_sent, optimizers_of
from hvd_elastic_keras.state import json_codec
from hvd_elastic_keras.state.packing import Tree
from hvd_elastic_keras.state.parts import Attributes

LOST = (
    "these variables of layers are not part of the elastic state: {}. Only numeric variables of a "
    "fixed shape can be sent to another worker. If they change during the training, keep what they "
    "hold in a value: ElasticState(..., name=...)."
)


def check_and_build(model: Any, optimizer: Any, variables: Iterable[Any]) -> None:
    """Refuses values that an elastic state cannot hold, and builds the optimizers.

    Raises:
      ConfigurationError: the model is not built, or an argument has the wrong type.
    """
    if model is not None and not isinstance(model, keras.Model):
        raise ConfigurationError(
            f"model is a {type(model).__module__}.{type(model).__name__}, expected a "
            "keras.Model. Give tf.Variables as variables=[...], and a plain value under "
            "another name."
        )
    if model is not None and not model.built:
        raise ConfigurationError(
            f"The model {model.name!r} is not built, so that it has no variables yet. Give it "
            "a keras.Input, call model.build(input_shape), or run it on one batch before the "
            "state is made."
        )
    if optimizer is not None and not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ConfigurationError(
            f"optimizer is a {type(optimizer).__module__}.{type(optimizer).__name__}, expected "
            "a keras.optimizers.Optimizer. Give a plain value under another name."
        )
    if model is not None:
        _build_optimizers(model, optimizer)
    for variable in variables:
        if not can_be_sent(variable):
            raise ConfigurationError(
                f"variables contains {variable!r:.80}, expected numeric tf.Variables of a "
                "fixed shape or Keras variables. Give plain values by name: "
                "ElasticState(..., batch=0)."
            )


def _build_optimizers(model: keras.Model, optimizer: Any) -> None:
    for each in (*optimizers_of(model), *([optimizer] if optimizer is not None else [])):
        if not each.built:
            each.build(model.trainable_variables)


def check_interval(name: str, value: float | None, kinds: tuple[type, ...]) -> None:
    """Refuses any value except None and positive numbers of these types."""
    is_number = isinstance(value, kinds) and not isinstance(value, bool)
    if value is not None and (not is_number or float(value) <= 0):
        raise ConfigurationError(
            f"{name}={value!r} was given, expected a positive "
            f"{'number' if float in kinds else 'whole number'} or None."
        )


def check_name(kind: type, name: str) -> None:
    """Refuses the name of a value if an elastic state of this class uses that name itself."""
    taken = name != "commits" and (hasattr(kind, name) or name.startswith("_"))
    if taken or name in ("num_commits", "in_fit", "fit_position", "exists", "finished"):
        raise ConfigurationError(
            f"An elastic state cannot have a value of the name {name!r}, which it uses itself. "
            "Give it another name."
        )


class PlainValues(Attributes):
    """The plain values of an elastic state."""

    def state(self) -> Tree:
        """Returns the values by name.

        Raises:
          ConfigurationError: a value cannot be encoded, and so cannot be sent.
        """
        return {name: _encoded(name, getattr(self.owner, name)) for name in self.names}


def _encoded(name: str, value: Any) -> Any:
    try:
        return json_codec.encode(value)
    except json_codec.NotEncodableError as error:
        raise ConfigurationError(
            f"The value {name!r} of an elastic state is or holds something that does not travel: "
            f"{error}. Expected numbers, texts, lists, tuples, sets, dicts of these and NumPy "
            "arrays. Convert a tensor with float(...) or .numpy(); give a tf.Variable in "
            "variables=[...]."
        ) from error
