"""A stand-in for `horovod.tensorflow` in scripts with a training loop of their own.

    import hvd_elastic_keras.horovod as hvd      # was: import horovod.tensorflow as hvd

    hvd.init()
    ...
    tape = hvd.DistributedGradientTape(tape)     # Keras 3 variables are welcome

    @hvd.elastic.run
    def train(state):
        ...

All names are Horovod's own but for those below. `init` initialises this process alone: rank 0 of
1. The real rank and size are there inside of functions of `hvd.elastic.run`, in reset callbacks
(which are called in the first round, too), and after the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import horovod.tensorflow
import tensorflow as tf

from hvd_elastic_keras import elastic
from hvd_elastic_keras.errors import ConfigurationError
from hvd_elastic_keras.training.variables import unwrapped
from hvd_elastic_keras.worker.communicator import restored, transportable
from hvd_elastic_keras.worker.rounds import rounds_of_process

__all__ = [
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
    "broadcast_variables",
    "elastic",
    "init",
    "shutdown",
]

BroadcastGlobalVariablesHook = elastic.refused("BroadcastGlobalVariablesHook")
DistributedOptimizer = elastic.refused("DistributedOptimizer")
PartialDistributedGradientTape = elastic.refused(
    "PartialDistributedGradientTape",
    reason="keeps layers that differ from worker to worker, but all workers share one state here",
    remedy="Use DistributedGradientTape.",
)


def __getattr__(name: str) -> Any:
    if name == "callbacks":
        raise ConfigurationError(
            "Horovod's Keras callbacks do not work with Keras 3. Train with model.fit(..., "
            "callbacks=[hvd_elastic_keras.ElasticCallback()])."
        )
    return getattr(horovod.tensorflow, name)


def init() -> None:
    """Initialises Horovod with this process as its whole world, unless it is initialised.

    Graphs that are traced from now on keep their collectives, so that a step that was traced
    alone works at any size.
    """
    rounds_of_process().start_alone()


def shutdown() -> None:
    """Shuts Horovod down, if it is initialised."""
    rounds_of_process().leave()


def DistributedGradientTape(gradtape: tf.GradientTape, *args: Any, **kwargs: Any) -> Any:  # noqa: N802
    """Horovod's tape, which averages gradients over all workers; sources may be Keras variables."""
    tape = horovod.tensorflow.DistributedGradientTape(gradtape, *args, **kwargs)
    gradient = tape.gradient
    # In the instance: Horovod's method looks for its base class by way of `self.__class__`, so
    # that in a subclass it would call itself for ever.
    tape.gradient = lambda target, sources, *args, **kwargs: gradient(
        target, [unwrapped(s) for s in sources], *args, **kwargs
    )
    return tape


def broadcast_variables(variables: Iterable[Any], root_rank: int, **kwargs: Any) -> None:
    """Gives everybody the values of `root_rank`; Keras variables and unsigned ones included.

    `ElasticState.sync` does this by itself for all that a state holds.
    """
    process_set = kwargs.get("process_set", horovod.tensorflow.global_process_set)
    for index, variable in enumerate(map(unwrapped, variables)):
        received = horovod.tensorflow.broadcast(
            transportable(tf.identity(variable)),
            root_rank,
            name=f"elastic_variables.{index}",
            process_set=process_set,
        )
        variable.assign(restored(received, variable.dtype))
