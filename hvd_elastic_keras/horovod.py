"""A stand-in for `horovod.tensorflow` and `horovod.tensorflow.keras`.

    import hvd_elastic_keras.horovod as hvd      # was: import horovod.tensorflow as hvd

    hvd.init()
    ...
    tape = hvd.DistributedGradientTape(tape)     # Keras 3 variables are welcome

    @hvd.elastic.run
    def train(state):
        ...

All names are Horovod's own, except for the ones defined below. `init` initialises this process
alone: rank 0 of 1. The real rank and size are available inside functions of `hvd.elastic.run`, in
reset callbacks (which are also called in the first round), and after the training has ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import horovod.tensorflow
import keras
import tensorflow as tf

from hvd_elastic_keras import elastic
from hvd_elastic_keras.api.horovod import callbacks, fit
from hvd_elastic_keras.api.horovod.fit import watch_fit
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.keras_internals.model_variables import unwrapped
from hvd_elastic_keras.worker.rounds import rounds_of_process
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

fit.provide_lr()


def refused(name: str, reason: str, remedy: str) -> Any:
    """Returns a stand-in for a Horovod function that cannot be used here; calls raise an error."""

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
    """Initialises Horovod with this process as its whole world. Does nothing if it is initialised.

    Under `horovodrun -np N`, the world has all N processes, as in Horovod.

    Graphs traced from now on keep their collectives. A step that was traced alone therefore works
    at any world size.
    """
    rounds_of_process().start_alone()


def shutdown() -> None:
    """Shuts Horovod down if it is initialised."""
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
    """Makes `apply` average gradients over all workers, and `fit` elastic. Returns the optimizer.

    As with Horovod, each worker takes a whole batch of the size given to `fit`. With an
    `ElasticCallback` among the callbacks, the workers share the batch instead.

    Arguments that say how gradients travel (`compression`, `device_dense`, `groups` and so on) are
    ignored.

    Raises:
      ConfigurationError: the arguments ask for something other than the average over all workers.
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
    return fit.distributed(optimizer)


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
    """Loads a model and makes its optimizer a `DistributedOptimizer`."""
    custom = {kind.__name__: kind for kind in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**custom, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is not None:
        DistributedOptimizer(model.optimizer)
    return model


def barrier(process_set: Any = None) -> None:
    """Waits for all workers of the round to call this. Returns at once if there is only one."""
    rounds = rounds_of_process()
    if rounds.size > 1:
        rounds.communicator.barrier("elastic_barrier")


def allreduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """Horovod's `allreduce`. Also takes numbers, NumPy arrays, and a name as second argument."""
    if args and isinstance(args[0], str):  # as in horovod.tensorflow.keras
        kwargs["name"], args = args[0], args[1:]
    if not isinstance(tensor, tf.IndexedSlices):
        tensor = tf.convert_to_tensor(tensor)
    return horovod.tensorflow.allreduce(tensor, *args, **kwargs)


def DistributedGradientTape(gradtape: tf.GradientTape, *args: Any, **kwargs: Any) -> Any:  # noqa: N802
    """Horovod's tape, which averages gradients over all workers. Also accepts Keras variables."""
    tape = horovod.tensorflow.DistributedGradientTape(gradtape, *args, **kwargs)
    gradient = tape.gradient
    # Set on the instance, not in a subclass: Horovod's method finds its base class through
    # `self.__class__`, so in a subclass it would call itself for ever.
    tape.gradient = lambda target, sources, *args, **kwargs: gradient(
        target, [unwrapped(s) for s in sources], *args, **kwargs
    )
    return tape


def broadcast_variables(variables: Iterable[Any], root_rank: int, **kwargs: Any) -> None:
    """Gives all workers the values of `root_rank`. Keras and unsigned integer variables work, too.

    `ElasticState.sync` already does this for everything in a state.
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
