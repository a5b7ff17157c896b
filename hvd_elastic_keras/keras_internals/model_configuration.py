"""How the layers, the optimizer and the losses of a model are configured, to compare workers.

Workers that differ in it, such as in an activation or a rate of dropout, would train one set of
weights by different rules. Nothing else would show it.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator
from typing import Any

import keras

from hvd_elastic_keras.keras_internals.model_variables import layers_of, optimizers_of

NOT_COMPARED = frozenset({"name", "seed", "trainable", "build_config"})
"""Entries that differ between two calls of the same code, or that callbacks may change while a job
trains: a worker that comes later has their first values when it is compared."""
RATE = "learning_rate"
"""It is not compared if it is a number: workers get that of rank 0, as they get weights."""
INITIALIZER = "_initializer"
"""It is not compared, for the same reason. It may hold a large table."""
LAMBDA = "__lambda__"
PLAIN = (str, bool, int, type(None))


def configuration(model: keras.Model) -> list[str]:
    """Returns a line for each layer, optimizer and loss: its class, and a digest.

    The digest is empty if it does not say how it is configured.
    """
    return [f"{type(part).__name__}:{_digest(part)}" for part in _parts(model)]


def _parts(model: keras.Model) -> Iterator[Any]:
    # Models list their layers in their own configuration, too, and inputs have the shape of data.
    others = (keras.Model, keras.layers.InputLayer)
    yield from (layer for layer in layers_of(model) if not isinstance(layer, others))
    yield from optimizers_of(model)
    losses = keras.tree.flatten(getattr(model, "loss", None))
    yield from (loss for loss in losses if isinstance(loss, keras.losses.Loss))


def _digest(part: Any) -> str:
    try:
        with warnings.catch_warnings():  # of lambdas, that it is unsafe to load them
            warnings.simplefilter("ignore")
            config = _plain(part.get_config())
    except Exception:  # the user may have written it
        return ""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:8]


def _is_compared(name: str, value: Any) -> bool:
    if name == RATE:
        return not isinstance(value, float)
    return name not in NOT_COMPARED and not name.endswith(INITIALIZER)


def _plain(value: Any) -> Any:
    """Returns the numbers and texts of a configuration; of other values, their class."""
    if isinstance(value, dict) and value.get("class_name") == LAMBDA:
        return LAMBDA  # its code names the file, which has other places on other machines
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items() if _is_compared(str(k), v)}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return f"{value:.6g}"  # workers may have computed it on unlike processors
    return value if isinstance(value, PLAIN) else type(value).__name__
