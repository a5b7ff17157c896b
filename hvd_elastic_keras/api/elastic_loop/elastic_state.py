"""`ElasticState`: everything the user's own training loop needs to continue on any worker.

The verbs come from Elastic Horovod (`horovod/common/elastic.py`): commit, restore, sync, reset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import keras
import tensorflow as tf
from horovod.common.exceptions import HostsUpdatedInterrupt

from hvd_elastic_keras.api.elastic_loop import elastic_state_arguments as arguments
from hvd_elastic_keras.api.elastic_loop.elastic_snapshot import Snapshot
from hvd_elastic_keras.api.elastic_loop.elastic_state_arguments import PlainValues
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.keras_internals import release
from hvd_elastic_keras.keras_internals.model_variables import (
    ModelVariables,
    unwrapped,
    variables_of,
)
from hvd_elastic_keras.state import broadcast, parts
from hvd_elastic_keras.state.broadcast import ROOT, StateOrigin, match, specs_of
from hvd_elastic_keras.state.packing import Tree
from hvd_elastic_keras.state.parts import Attribute, Attributes, Part
from hvd_elastic_keras.worker.rounds import rounds_of_process

VERSION = 3
"""Version of the parts. Raise it whenever the content of a part changes."""
CHECKPOINT_EVERY_S = 60.0


class ElasticState:
    """Model, optimizer, variables and plain values that all workers share.

    Args:
      model: a built `keras.Model`. The state holds its weights, batch-norm statistics, metrics,
        seeds, and the `tf.Variable`s of its layers.
      optimizer: the state holds its slots and learning rate; the model's own optimizer by default.
        Optimizers that the model or its layers hold as attributes are part of the state, too. An
        optimizer that is not built is built here for the model's trainable variables. An optimizer
        for other variables must be built before.
      variables: further `tf.Variable`s or Keras variables.
      values: plain values by name, which become attributes: numbers, texts, lists, tuples, dicts of
        these, sets, NumPy arrays and scalars.
      checkpoint_every_s: seconds after which rank 0 writes the next checkpoint, under a launcher:
        it writes a commit to the job directory. A checkpoint is always written when the job stops,
        and at the end. A job that has lost all its workers, or was interrupted, continues from the
        newest one. None: not by time.
      checkpoint_every_n_commits: number of commits after which rank 0 writes the next checkpoint.
        None: not by number.

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
        *,
        checkpoint_every_s: float | None = CHECKPOINT_EVERY_S,
        checkpoint_every_n_commits: int | None = None,
        **values: Any,
    ) -> None:
        release.check()
        arguments.check_interval("checkpoint_every_s", checkpoint_every_s, (int, float))
        arguments.check_interval("checkpoint_every_n_commits", checkpoint_every_n_commits, (int,))
        self.checkpoint_every_s = checkpoint_every_s
        self.checkpoint_every_n_commits = checkpoint_every_n_commits
        self._after_commit: Callable[[], None] | None = None
        self._rounds = rounds_of_process()
        self.model = model
        self.optimizer = optimizer if optimizer is not None else getattr(model, "optimizer", None)
        self.variables = tuple(unwrapped(v) for v in variables or ())
        arguments.check_and_build(self.model, self.optimizer, self.variables)
        self._names = tuple(values)
        for name, value in values.items():
            arguments.check_name(type(self), name)
            setattr(self, name, value)
        self._reset_callbacks: list[Callable[[], object]] = []
        self.num_commits = 0
        """Number of commits since the function was first called, on any worker."""
        self.in_fit = False
        """Whether `fit` is training: each of its steps is safe without a commit."""
        self.fit_position: dict[str, Any] | None = None
        """Position of an unfinished `fit` in the function: `fit_in_elastic_run.Position`."""
        self.finished = False
        """Whether the function of `elastic.run` has returned, on this worker or on another."""
        self.exists = False
        """Whether this worker holds a valid state (false until the first sync)."""
        self._parts: dict[str, Part] = {
            "values": PlainValues(self, self._names),
            "fit": Attribute(self, "fit_position"),
        }
        """Parts that a commit keeps and a restore brings back."""
        self._counters = {"counters": Attributes(self, ("num_commits", "finished"))}
        """Counters that change with every commit. A restore does not bring them back."""
        self._keep()

    if TYPE_CHECKING:  # the plain values

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    @property
    def commits(self) -> Any:
        """Number of commits so far, or the user's value of this name if there is one."""
        return vars(self).get("commits", self.num_commits)

    @commits.setter
    def commits(self, value: Any) -> None:
        vars(self)["commits"] = value

    @property
    def progress(self) -> int:
        """Orders the states of workers by age."""
        return self.num_commits + self.finished

    # --- Horovod's verbs -----------------------------------------------------------------

    def commit(self) -> None:
        """Keeps the present state, and ends the round if the membership is to change.

        This is a collective: all workers of the round call it after the same step.

        Raises:
          HostsUpdatedInterrupt: for `elastic.run`, on all workers at once; no step is lost.
          ConfigurationError: an attribute has a value that cannot be sent to another worker.
        """
        if self.in_fit:
            return
        self.save()
        if self._change_is_agreed():
            raise HostsUpdatedInterrupt(skip_sync=False)

    def check_host_updates(self) -> None:
        """Keeps the present state and ends the round, if the membership is to change.

        This is cheaper than `commit`, for loops that commit rarely. It is a collective, like
        `commit`.

        Raises:
          HostsUpdatedInterrupt: for `elastic.run`, on all workers at once; no step is lost.
        """
        if not self.in_fit and self._change_is_agreed():
            self.save()
            raise HostsUpdatedInterrupt(skip_sync=False)

    def save(self) -> None:
        """Keeps the present state, without checking the membership."""
        self._keep()
        self.num_commits += 1
        self._rounds.session.reporter.at("training", self.num_commits, self.progress)
        if self._after_commit is not None:
            self._after_commit()

    def restore(self) -> None:
        """Restores variables and values to the last kept state.

        Raises:
          ConfigurationError: an optimizer has made variables since then, which cannot be undone.
        """
        kept = self._kept
        kept.check_complete(self._present().groups)
        for variable, tensor in zip(kept.variables, kept.tensors, strict=True):
            variable.assign(tensor)
        parts.restore(self._parts, kept.states)

    def sync(self) -> None:
        """Gives all workers the present state of rank 0, and keeps it.

        A worker first receives everything, and only then assigns anything.

        Raises:
          CollectiveFailedError: another worker went away meanwhile; nothing has changed.
          ConfigurationError: rank 0 has other variables.
        """
        if self._rounds.size > 1:
            self._receive()
        else:
            self._keep()
        self.exists = True

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Adds functions that are called at the start of every round, before the sync.

        The functions see the rank and size of the round, so they can scale the learning rate. They
        must not contain collectives, because a worker that has finished does not call them.
        """
        self._reset_callbacks.extend(callbacks)

    @property
    def has_reset_callbacks(self) -> bool:
        """Whether functions have been registered."""
        return bool(self._reset_callbacks)

    def on_reset(self) -> None:
        """Calls `reset` and the registered functions."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def reset(self) -> None:
        """Does nothing. A subclass may override this to prepare every round at its start."""

    def on_hosts_updated(self, timestamp: object = None, update_res: object = None) -> NoReturn:
        """Refuses the call. Horovod's driver calls this; here, the launcher tells each worker.

        Raises:
          ConfigurationError: always.
        """
        raise ConfigurationError(
            "state.on_hosts_updated() is for the driver of Horovod, which is not used here: the "
            "launcher tells workers of changes. Leave it out; `python -m hvd_elastic_keras.ctl` "
            "changes the number of workers."
        )

    # --- for `elastic.run` ---------------------------------------------------------------

    def begin(self, after_commit: Callable[[], None] | None = None) -> None:
        """Starts a function. Another function may have finished with this state before."""
        self._after_commit = after_commit
        self.num_commits = 0
        self.fit_position = None
        self.finished = self.exists = False

    def finish(self) -> None:
        """Keeps the state in which the function returned. Other workers get it and return, too."""
        self._keep()
        self.finished = True

    def unsendable_warning(self) -> str:
        """Returns a warning of variables that cannot be sent to other workers; "" if all can."""
        lost = self._present().lost
        return arguments.LOST.format(", ".join(lost)) if lost else ""

    def keep_as_it_is(self) -> None:
        """Keeps the state of a finished step when a round ends during `fit` in the function."""
        self._keep()

    def keep_without_sync(self) -> None:
        """Keeps the state without a sync: all members of the round already hold it."""
        self._keep()
        self.exists = True

    def kept(self) -> tuple[dict[str, Any], tuple[tf.Tensor, ...]]:
        """Returns the states of the parts and the values of the variables that were kept last."""
        kept = self._kept
        states = {**self._numbered(kept.states), broadcast.SPECS: specs_of(kept.groups)}
        return states, kept.tensors

    def take_over(
        self,
        states: dict[str, Any],
        tensors: Sequence[tf.Tensor],
        origin: StateOrigin,
        checkpoint: Path | str | None,
    ) -> None:
        """Restores and keeps a state that `kept` has returned in another process.

        Args:
          checkpoint: where the state was read from; None if another worker has sent it.

        Raises:
          ConfigurationError: the state was made by another script or release; nothing has changed.
        """
        parts.check_version(states, VERSION, checkpoint)
        self._check_names(states["values"], origin)
        pairs = match(
            self._present().groups, states[broadcast.SPECS], tensors, origin, made_late=True
        )
        parts.restore_all_or_none({**self._parts, **self._counters}, states)
        for variable, tensor in pairs:
            variable.assign(tensor)
        self._keep()

    # --- details -------------------------------------------------------------------------

    def _change_is_agreed(self) -> bool:
        """Returns whether any worker knows of a change. All workers get the same answer."""
        pending = self._rounds.session.change_pending
        if self._rounds.size == 1:
            return pending
        communicator = self._rounds.communicator
        with communicator.collective():
            return communicator.any_true(pending, "elastic_state.change")

    def _present(self) -> ModelVariables:
        """Returns the present variables: layers and optimizers may make more later."""
        return variables_of(self.model, self.optimizer, self.variables)

    def _keep(self) -> None:
        self._kept = Snapshot.of(parts.states_of(self._parts), self._present().groups)

    def _numbered(self, states: dict[str, Tree]) -> dict[str, Any]:
        return {"version": VERSION, **states, **parts.states_of(self._counters)}

    def _receive(self) -> None:
        is_root = self._rounds.place.rank == 0
        states, arrival = broadcast.from_root(
            self._rounds.communicator,
            is_root=is_root,
            states=lambda: self._numbered(parts.states_of(self._parts)),
            groups=self._present().groups,
            has_root_state=self._seems_level,
            compare=self._rounds.size > 2,
            name="elastic_state",
        )
        if is_root:
            self._keep()
        else:
            self.take_over(states, arrival.tensors(), ROOT, checkpoint=None)

    def _seems_level(self, states: dict[str, Any]) -> bool:
        """Returns whether this worker has as many commits as rank 0.

        Its variables may have changed since then. Always returns False in a round of two workers.
        """
        mine = parts.states_of(self._counters)["counters"]
        return self.exists and self._rounds.size > 2 and states.get("counters") == mine

    def _check_names(self, theirs: Iterable[str], origin: StateOrigin) -> None:
        if set(theirs) != set(self._names):
            raise ConfigurationError(
                f"{origin.name} has the values {sorted(theirs)}, the state of this worker "
                f"{sorted(self._names)}. {origin.remedy}"
            )
