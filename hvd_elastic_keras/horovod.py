"""A stand-in for `horovod.tensorflow` and `horovod.tensorflow.keras`.

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
from typing import Any, NoReturn

import horovod.tensorflow
import keras
import tensorflow as tf

from hvd_elastic_keras import elastic
from hvd_elastic_keras.api import horovod_callbacks as callbacks
from hvd_elastic_keras.api import horovod_optimizer
from hvd_elastic_keras.api.horovod_fit import watch_fit
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.keras_internals.model_variables import unwrapped
from hvd_elastic_keras.worker.process_rounds import rounds_of_process
from hvd_elastic_keras.worker.tensor_bytes import restored, transportable

__all__ = [
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
    "SyncBatchNormalization",
    "allreduce",
    "barrier",
    "broadcast_variables",
    "callbacks",
    "elastic",
    "init",
    "load_model",
    "shutdown",
]

horovod_optimizer.provide_lr()


def refused(name: str, reason: str, remedy: str) -> Any:
    """Stands for a name of Horovod's that cannot be used here; refuses to be called."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise ConfigurationError(f"Horovod's {name} {reason}. {remedy}")

    refuse.__name__ = name
    return refuse


BroadcastGlobalVariablesHook = refused(
    "BroadcastGlobalVariablesHook",
    "is for sessions of TensorFlow 1",
    "Leave it out: an elastic state, and fit, give everybody the variables of rank 0.",
)
PartialDistributedGradientTape = refused(
    "PartialDistributedGradientTape",
    "keeps layers that differ from worker to worker, but all workers share one state here",
    "Use DistributedGradientTape.",
)
SyncBatchNormalization = refused(
    "SyncBatchNormalization",
    "does not work with Keras 3",
    "Use keras.layers.BatchNormalization: fit keeps its averages equal on all workers, and "
    "ElasticCallback(micro_batch_size=...) says over how many examples it normalises.",
)


def __getattr__(name: str) -> Any:
    return getattr(horovod.tensorflow, name)


def init() -> None:
    """Initialises Horovod with this process as its whole world, unless it is initialised.

    Under `horovodrun -np N` with all N, as Horovod does.

    Graphs that are traced from now on keep their collectives, so that a step that was traced
    alone works at any size.
    """
    rounds_of_process().start_alone()


def shutdown() -> None:
    """Shuts Horovod down, if it is initialised."""
    rounds_of_process().leave()


def DistributedOptimizer(  # noqa: N802
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    *args: Any,
    op: Any = horovod.tensorflow.Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: Any = None,
    **kwargs: Any,
) -> Any:
    """The same optimizer: `apply` averages gradients over all workers, and `fit` is elastic.

    In `fit` each worker takes the batch that `fit` is given, as with Horovod; with an
    `ElasticCallback` among the callbacks they share it.

    What says how gradients travel (`compression`, `device_dense`, `groups` and so on) is ignored.

    Raises:
      ConfigurationError: it is to do something else than to average over all workers.
    """
    if args or op != horovod.tensorflow.Average:
        raise ConfigurationError(
            "hvd.DistributedOptimizer averages gradients only: op=hvd.Sum and hvd.Adasum are not "
            "there. Leave op out (and give other arguments by name); for a sum, multiply the "
            "learning rate by hvd.size()."
        )
    if process_set not in (None, horovod.tensorflow.global_process_set):
        raise ConfigurationError(
            "hvd.DistributedOptimizer got a process_set, but all workers share one state here. "
            "Leave it out."
        )
    if backward_passes_per_step > 1:
        _accumulate(optimizer, backward_passes_per_step, average_aggregated_gradients)
    watch_fit()
    return horovod_optimizer.distributed(optimizer)


def _accumulate(optimizer: keras.optimizers.Optimizer, passes: int, averages: bool) -> None:
    if not averages:
        raise ConfigurationError(
            f"backward_passes_per_step={passes} sums the gradients of so many passes unless "
            "average_aggregated_gradients=True, and Keras 3 averages them. Give that, and multiply "
            f"the learning rate by {passes} for the same steps."
        )
    if optimizer.gradient_accumulation_steps not in (None, passes):
        raise ConfigurationError(
            f"backward_passes_per_step={passes} and the optimizer's gradient_accumulation_steps="
            f"{optimizer.gradient_accumulation_steps} were given. Give one of the two."
        )
    optimizer.gradient_accumulation_steps = passes


def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: dict[str, Any] | None = None,
    **_: Any,
) -> keras.Model:
    """Loads a model, whose optimizer then is a `DistributedOptimizer`."""
    custom = {kind.__name__: kind for kind in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**custom, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is not None:
        DistributedOptimizer(model.optimizer)
    return model


def barrier(process_set: Any = None) -> None:
    """Returns when all workers of the round have come here; at once where there are no others."""
    rounds = rounds_of_process()
    if rounds.size > 1:
        rounds.communicator.barrier("elastic_barrier")


def allreduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """Horovod's, which also takes Python numbers, NumPy arrays, and a name as second argument."""
    if args and isinstance(args[0], str):  # as in horovod.tensorflow.keras
        kwargs["name"], args = args[0], args[1:]
    if not isinstance(tensor, tf.IndexedSlices):
        tensor = tf.convert_to_tensor(tensor)
    return horovod.tensorflow.allreduce(tensor, *args, **kwargs)


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
