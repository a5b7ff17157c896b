"""Elastic states with the names and arguments of Horovod's states."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras

from hvd_elastic_keras.api.elastic_loop.elastic_state import ElasticState
from hvd_elastic_keras.common.errors import ConfigurationError


class TensorFlowKerasState(ElasticState):
    """`ElasticState` with the arguments of Horovod's class of this name.

    `backend` was for TensorFlow 1; it is ignored.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer | None = None,
        backend: object = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, optimizer, **kwargs)


class TensorFlowState(ElasticState):
    """`ElasticState` with the arguments of Horovod's class of this name.

    `session` was for TensorFlow 1; it is ignored. `variables` is needed: TensorFlow 2 has no
    list of all variables.
    """

    def __init__(
        self, variables: Iterable[Any] | None = None, session: object = None, **kwargs: Any
    ) -> None:
        if variables is None:
            raise ConfigurationError(
                "TensorFlowState() was made without variables, and TensorFlow 2 has no list of "
                "all variables. Give those to share: TensorFlowState([variable, ...]), or "
                "TensorFlowKerasState(model, optimizer)."
            )
        super().__init__(variables=variables, **kwargs)


class ObjectState(ElasticState):
    """`ElasticState` of plain values, with the arguments of Horovod's class of this name.

    `bcast_object` and `get_rank` are ignored: values travel by this package's own broadcast.
    """

    def __init__(self, bcast_object: object = None, get_rank: object = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
