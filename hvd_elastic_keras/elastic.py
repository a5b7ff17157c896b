"""Elastic training loops that you write yourself, in the style of Elastic Horovod.

    from hvd_elastic_keras import elastic

    state = elastic.ElasticState(model, optimizer, batch=0)

    @elastic.run
    def train(state):
        ...
        state.commit()

    train(state)

The names are the same as in `horovod.tensorflow.elastic`; docs/coming_from.md says what differs.
"""

from __future__ import annotations

from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

from hvd_elastic_keras.api.elastic_loop.elastic_run import run
from hvd_elastic_keras.api.elastic_loop.elastic_state import ElasticState
from hvd_elastic_keras.api.horovod.callbacks import (
    CommitStateCallback,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
)
from hvd_elastic_keras.api.horovod.states import (
    ObjectState,
    TensorFlowKerasState,
    TensorFlowState,
)
from hvd_elastic_keras.state import keras_saving

keras_saving.install()

KerasState = TensorFlowKerasState
"""The name of this class in `horovod.tensorflow.keras.elastic`."""

__all__ = [
    "CommitStateCallback",
    "ElasticState",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "KerasState",
    "ObjectState",
    "TensorFlowKerasState",
    "TensorFlowState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]
