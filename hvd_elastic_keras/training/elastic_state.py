"""`ElasticState`: what a training loop of the user's own must have to go on, on any worker.

The verbs are those of Elastic Horovod (`horovod/common/elastic.py`): commit, restore, sync, reset.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf
from horovod.common.exceptions import HostsUpdatedInterrupt

from hvd_elastic_keras.errors import ConfigurationError
from hvd_elastic_keras.training import codec, keras_release
from hvd_elastic_keras.training.tracked import (
    Tracked,
    empty_tensors,
    match,
    specs_of,
)
from hvd_elastic_keras.training.variables import unwrapped
from hvd_elastic_keras.worker.rounds import rounds_of_process

PAYLOAD_VERSION = 1
HOST_MEMORY = "CPU:0"


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A copy of a state in host memory.

    Attributes:
      values: the plain values as JSON, so that nothing in it can change.
      variables, tensors: variables and their values, in the same order.
    """

    values: str
    variables: tuple[tf.Variable, ...]
    tensors: tuple[tf.Tensor, ...]


class ElasticState:
    """Model, optimizer, variables and plain values that all workers share.

    Args:
      model: a built `keras.Model`: weights, batch-norm statistics, metrics, seeds.
      optimizer: its slots and learning rate; the model's own by default. If it is not built, it
        is built here for the model's trainable variables; one for others must be built before.
      variables: `tf.Variable`s or Keras variables beside those.
      values: plain values by name, which become attributes: numbers, texts, lists, tuples, dicts
        with texts as keys, NumPy arrays and scalars.

    Raises:
      ConfigurationError: the model is not built, or a value is of another type.

    Example:

        state = ElasticState(model, optimizer, batch=0, epoch=0)

        @elastic.run
        def train(state):
            while state.batch < 1000:
                step(state.batch)
                state.batch += 1
                state.commit()

        train(state)
    """

    def __init__(
        self,
        model: keras.Model | None = None,
        optimizer: keras.optimizers.Optimizer | None = None,
        variables: Iterable[Any] | None = None,
        **values: Any,
    ) -> None:
        keras_release.check()
        self._rounds = rounds_of_process()
        self.model = model
        self.optimizer = optimizer if optimizer is not None else getattr(model, "optimizer", None)
        self.variables = tuple(unwrapped(v) for v in variables or ())
        self._check_and_build()
        self._tracked = Tracked(self.model, self.optimizer, self.variables)
        self._names = tuple(values)
        for name, value in values.items():
            _check_name(type(self), name)
            setattr(self, name, value)
        self._reset_callbacks: list[Callable[[], object]] = []
        self.commits = 0
        """Number of commits so far, on any worker, since the function was first called."""
        self.finished = False
        """Whether the function of `elastic.run` has returned, on this worker or on another."""
        self.exists = False
        """Whether this state is worth keeping (false until the first sync)."""
        self._keep()

    if TYPE_CHECKING:  # the plain values

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    @property
    def progress(self) -> int:
        """Orders the states of workers by age."""
        return self.commits + self.finished

    # --- Horovod's verbs -----------------------------------------------------------------

    def commit(self) -> None:
        """Keeps the present state, and ends the round if the membership is to change.

        A collective: all workers of the round call it after the same step.

        Raises:
          HostsUpdatedInterrupt: for `elastic.run`, on all workers at once; no step is lost.
          ConfigurationError: an attribute has a value that cannot be sent to another worker.
        """
        self.save()
        if self._change_is_agreed():
            raise HostsUpdatedInterrupt(skip_sync=False)

    def check_host_updates(self) -> None:
        """Ends the round if the membership is to change; then the present state is kept first.

        For loops that commit rarely: cheaper than `commit`. A collective, like `commit`.

        Raises:
          HostsUpdatedInterrupt: for `elastic.run`, on all workers at once; no step is lost.
        """
        if self._change_is_agreed():
            self.save()
            raise HostsUpdatedInterrupt(skip_sync=False)

    def save(self) -> None:
        """Keeps the present state, without a look at the membership."""
        self._keep()
        self.commits += 1
        self._rounds.session.at("training", self.commits, self.progress)

    def restore(self) -> None:
        """Goes back to the last kept state, in variables and values."""
        kept = self._kept
        for variable, tensor in zip(kept.variables, kept.tensors, strict=True):
            variable.assign(tensor)
        self._set_values(json.loads(kept.values))

    def sync(self) -> None:
        """Takes over the present state of rank 0, on all workers, and keeps it.

        Two phases: everything is received first, and only then is anything assigned.

        Raises:
          CollectiveFailedError: a peer went away meanwhile; nothing has changed.
          ConfigurationError: rank 0 has other variables.
        """
        if self._rounds.size > 1:
            self._receive()
        self._keep()
        self.exists = True

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Adds functions that are called at the start of every round, before the sync.

        Rank and size are those of the round then: the place to scale the learning rate. The
        functions must not contain collectives, as a worker that has finished does not call them.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Calls `reset` and the registered functions."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def reset(self) -> None:
        """For subclasses: what has to be done anew at the start of every round."""

    # --- for `elastic.run` ---------------------------------------------------------------

    def begin(self) -> None:
        """A function begins, maybe with a state that another one has finished with."""
        self.commits = 0
        self.finished = self.exists = False

    def finish(self) -> None:
        """The function has returned: others are brought to this state, and return too."""
        self._keep()
        self.finished = True

    def keep_without_sync(self) -> None:
        """All members of the round hold this state already."""
        self._keep()
        self.exists = True

    # --- details -------------------------------------------------------------------------

    def _check_and_build(self) -> None:
        model, optimizer = self.model, self.optimizer
        if model is not None and not isinstance(model, keras.Model):
            raise ConfigurationError(
                f"model is a {type(model).__module__}.{type(model).__name__}, expected a "
                "keras.Model. Give tf.Variables as variables=[...]."
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
                "a keras.optimizers.Optimizer."
            )
        if model is not None and optimizer is not None and not optimizer.built:
            optimizer.build(model.trainable_variables)
        for variable in self.variables:
            if not _is_numeric_variable(variable):
                raise ConfigurationError(
                    f"variables contains {variable!r:.80}, expected numeric tf.Variables of a "
                    "fixed shape or Keras variables. Give plain values by name: "
                    "ElasticState(..., batch=0)."
                )

    def _change_is_agreed(self) -> bool:
        """Whether any worker knows of a change; the same answer on all."""
        pending = self._rounds.session.change_pending
        if self._rounds.size == 1:
            return pending
        communicator = self._rounds.communicator
        with communicator.collective():
            return communicator.any_true(pending, "elastic_state.change")

    def _keep(self) -> None:
        values = json.dumps(self._values())
        variables = tuple(self._tracked.all())
        with tf.device(HOST_MEMORY):
            tensors = tuple(tf.identity(v) for v in variables)
        self._kept = Snapshot(values, variables, tensors)

    def _values(self) -> dict[str, Any]:
        return {name: _encoded(name, getattr(self, name)) for name in self._names}

    def _set_values(self, encoded: dict[str, Any]) -> None:
        for name, value in encoded.items():
            setattr(self, name, codec.from_json(value))

    def _receive(self) -> None:
        communicator = self._rounds.communicator
        is_root = self._rounds.place.rank == 0
        groups = self._tracked.groups()
        mine = json.dumps(self._header(groups)).encode() if is_root else b""
        with communicator.collective():
            content = json.loads(communicator.broadcast_bytes(mine, "elastic_state"))
            tensors = [tf.identity(v) for group in groups.values() for v in group]
            if not is_root:
                tensors = empty_tensors(content["specs"])
            tensors = communicator.broadcast_tensors(tensors, "elastic_state")
        if not is_root:
            self._take_over(content, match(groups, content["specs"], tensors))

    def _header(self, groups: dict[str, list[tf.Variable]]) -> dict[str, Any]:
        return {
            "version": PAYLOAD_VERSION,
            "commits": self.commits,
            "finished": self.finished,
            "values": self._values(),
            "specs": specs_of(groups),
        }

    def _take_over(
        self, content: dict[str, Any], pairs: list[tuple[tf.Variable, tf.Tensor]]
    ) -> None:
        if set(content["values"]) != set(self._names):
            raise ConfigurationError(
                f"The elastic state of rank 0 has the values {sorted(content['values'])}, that of "
                f"this worker {sorted(self._names)}. All workers must run the same script."
            )
        for variable, tensor in pairs:
            variable.assign(tensor)
        self._set_values(content["values"])
        self.commits = content["commits"]
        self.finished = content["finished"]


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

    def __init__(self, variables: Iterable[Any], session: object = None, **kwargs: Any) -> None:
        super().__init__(variables=variables, **kwargs)


class ObjectState(ElasticState):
    """`ElasticState` of plain values, with the arguments of Horovod's class of this name.

    `bcast_object` and `get_rank` are ignored: values travel by this package's own broadcast.
    """

    def __init__(self, bcast_object: object = None, get_rank: object = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)


def _is_numeric_variable(value: Any) -> bool:
    return (
        isinstance(value, tf.Variable)
        and value.dtype != tf.string
        and value.shape.is_fully_defined()
    )


def _encoded(name: str, value: Any) -> Any:
    try:
        return codec.to_json(value)
    except codec.NotEncodableError as error:
        raise ConfigurationError(
            f"The value {name!r} of an elastic state is or holds something that does not travel: "
            f"{error}. Expected numbers, texts, lists, tuples, dicts with texts as keys and NumPy "
            "arrays. Convert a tensor with float(...) or .numpy(); give a tf.Variable in "
            "variables=[...]."
        ) from error


def _check_name(kind: type, name: str) -> None:
    taken = hasattr(kind, name) or name.startswith("_")
    if taken or name in ("commits", "exists", "finished"):
        raise ConfigurationError(
            f"An elastic state cannot have a value of the name {name!r}, which it uses itself. "
            "Give it another name."
        )
