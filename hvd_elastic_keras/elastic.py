"""Training loops of your own, in the style of Elastic Horovod.

    from hvd_elastic_keras import elastic

    state = elastic.ElasticState(model, optimizer, batch=0)

    @elastic.run
    def train(state):
        ...
        state.commit()

    train(state)

The names are those of `horovod.tensorflow.elastic`; docs/coming_from.md says what differs.
"""

from __future__ import annotations

from typing import Any, NoReturn

from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

from hvd_elastic_keras.errors import ConfigurationError
from hvd_elastic_keras.training.elastic_loop import run
from hvd_elastic_keras.training.elastic_state import (
    ElasticState,
    ObjectState,
    TensorFlowKerasState,
    TensorFlowState,
)

KerasState = TensorFlowKerasState
"""Horovod's name in `horovod.tensorflow.keras.elastic`."""

__all__ = [
    "ElasticState",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "KerasState",
    "ObjectState",
    "TensorFlowKerasState",
    "TensorFlowState",
    "run",
]


_REMEDY = (
    "Train with model.fit(..., callbacks=[hvd_elastic_keras.ElasticCallback()]), or write the loop "
    "with hvd.DistributedGradientTape."
)


def refused(name: str, reason: str = "does not work with Keras 3", remedy: str = _REMEDY) -> Any:
    """Stands for a name of Horovod's that cannot be used here; refuses to be called."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise ConfigurationError(f"Horovod's {name} {reason}. {remedy}")

    refuse.__name__ = name
    return refuse


CommitStateCallback = refused("CommitStateCallback")
UpdateBatchStateCallback = refused("UpdateBatchStateCallback")
UpdateEpochStateCallback = refused("UpdateEpochStateCallback")
