"""Everything a worker must have to go on at a step: variables, and a registry of named parts."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import keras

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.common.protocol import Assignment
from hvd_elastic_keras.data.input.interfaces import Input
from hvd_elastic_keras.keras_internals.learning_rate import Ramp
from hvd_elastic_keras.keras_internals.model_variables import ModelVariables
from hvd_elastic_keras.observe.notices import notices
from hvd_elastic_keras.state import broadcast, parts
from hvd_elastic_keras.state.broadcast import Spec, StateOrigin, match
from hvd_elastic_keras.state.cursor import Cursor, Phase
from hvd_elastic_keras.state.parts import (
    Attribute,
    Attributes,
    DataIdentity,
    Part,
    UserState,
    UserValues,
)
from hvd_elastic_keras.worker.horovod_runtime import Communicator
from hvd_elastic_keras.worker.transfer.arrival import Arrival

VERSION = 4
"""Version of the parts. Raise it with every change of what they return."""
LEAST_LATE_BYTES = 32 * 2**20
"""Size of variables from which on the other workers do not wait. Smaller ones arrive in no time."""
COLLECTIVES = "collectives"
"""Name of the root's digest of collectives, among the states of the parts while they are sent."""
CONFIGURATION = "configuration"
"""Name of the configuration of the root's model, beside it."""
PATHS = "paths"
"""Name of the paths to which the root's callbacks write, among these states."""
OTHER_PATHS = (
    "warning: callbacks write to paths that differ from worker to worker ({}): is a time, a random "
    "number or a temporary directory part of them? Only one worker writes (now to {}): code after "
    "fit finds the files in that worker only, and another worker that takes over begins others. "
    "Use the same paths in all workers (docs/scripts.md)"
)
ROOT = StateOrigin("The state of rank 0", "All workers must run the same script.")

log = logging.getLogger(__name__)


@dataclasses.dataclass
class Marks:
    """Calls and decisions so far, which must not happen again after a recovery.

    Attributes:
      epoch_begun: the last epoch whose `on_epoch_begin` has been called. The hook may change the
        learning rate, so it is never called twice for an epoch.
      batch_begun: `Cursor.progress` of the last step whose batch-begin hook has been called.
      evaluation_begun: the last epoch whose `on_test_begin` has been called.
      stop_agreed: whether all workers know that callbacks end the training early.
      ended: whether `on_train_end` has been called.
      raised: the error with which callbacks have ended the training on all workers, as
        `raised_error.packed` gives it; None if there is none, and empty if it cannot be made again.
    """

    epoch_begun: int = -1
    batch_begun: int = -1
    evaluation_begun: int = -1
    stop_agreed: bool = False
    ended: bool = False
    raised: list[Any] | None = None


class Callbacks(Part, Protocol):
    """The memory of the callbacks; see `CallbackRunner`."""

    @property
    def paths(self) -> Sequence[tuple[str, str]]:
        """Names of callbacks with the paths that they write to."""


class RunState:
    """The state that all workers of a training share: variables, and parts with their own state.

    Args:
      model: the model that is trained.
      variables: variables of the model and its optimizers.
      callbacks: the memory of the callbacks.
      inputs: input of the training, and of the validation if there is any.
      cursor: position at which the training begins.
      user: the user's values.
      collectives: digest of the collectives of the steps; all workers must make the same ones.
      configuration: see `model_configuration`; that of all workers must be the same.
    """

    def __init__(
        self,
        model: keras.Model,
        variables: ModelVariables,
        callbacks: Callbacks,
        *,
        inputs: Sequence[Input],
        cursor: Cursor,
        user: UserState,
        collectives: str = "",
        configuration: Sequence[str] = (),
    ) -> None:
        self._collectives = collectives
        self._configuration = list(configuration)
        self._callbacks = callbacks
        self.cursor = cursor
        self.unfinished: Cursor | None = None
        """Position at which the given number of steps has cut off an epoch."""
        self.marks = Marks()
        self.ramp = Ramp()
        """The scale of the learning rate, as of the last finished step."""
        self.slowness: dict[str, float] = {}
        """Slowness by worker id, which the shares follow; empty while the shares are even."""
        self.epoch_logs: dict[str, Any] = {}
        self.evaluation_logs: dict[str, Any] = {}
        self.exists = False
        """Whether this worker holds a state worth keeping (false until its first sync)."""
        self.user = user
        self.may_be_late: Callable[[], bool] = never
        """Whether the next step can be taken before the variables have arrived."""
        self.late_ranks: Sequence[int] = ()
        """Ranks that take the first step of the round before their variables have arrived."""
        self.waited_s = 0.0
        """How long the newest step has waited for late variables."""
        self._arrival: Arrival | None = None
        self._coming: dict[str, list[Spec]] | None = None
        """Shapes and dtypes of variables that are on their way."""
        self._before: dict[str, Any] = {}
        """States of the parts from before a state came whose variables are on their way."""
        self._variables = variables
        self._data = DataIdentity(inputs)
        self._parts: dict[str, Part] = {
            "cursor": Attribute(self, "cursor", Cursor.to_json, Cursor.from_json),
            "unfinished": Attribute(self, "unfinished", _cursor_to_json, _cursor_from_json),
            "marks": Attribute(self, "marks", dataclasses.asdict, lambda state: Marks(**state)),
            "ramp": Attribute(self, "ramp", dataclasses.asdict, lambda state: Ramp(**state)),
            "speed": Attributes(self, ("slowness",)),
            "logs": Attributes(self, ("epoch_logs", "evaluation_logs")),
            "stop_training": Attribute(model, "stop_training", bool, bool),
            "callbacks": callbacks,
            "user": UserValues(user),
        }

    @property
    def variables(self) -> ModelVariables:
        """Variables of the model and its optimizers."""
        return self._variables

    def hand_over(self, callbacks: Callbacks, user: UserState) -> None:
        """Replaces the callbacks and the user's values by those of another call of `fit`."""
        self.user = user
        self._callbacks = callbacks
        self._parts |= {"callbacks": callbacks, "user": UserValues(user)}

    def state(self) -> dict[str, Any]:
        """Returns the whole state but the variables."""
        return {
            "version": VERSION,
            "data": self._data.state(),
            **parts.states_of(self._parts),
        }

    def restore(self, state: dict[str, Any], checkpoint: Path | str | None = None) -> None:
        """Takes over a result of `state`.

        Args:
          checkpoint: where the state was read from; None if another worker has sent it.

        Raises:
          ConfigurationError: the state was made by another release, or by a worker whose steps make
            other collectives.
          DataError: the state was made by a worker that reads other data.
        """
        parts.check_version(state, VERSION, checkpoint)
        self._data.restore(state["data"], checkpoint)
        self._check_collectives(state.get(COLLECTIVES, self._collectives))
        self._check_configuration(state.get(CONFIGURATION, self._configuration))
        parts.restore(self._parts, state)

    def _check_collectives(self, of_root: str) -> None:
        if of_root != self._collectives:
            raise ConfigurationError(
                "The step of this worker is not that of rank 0: they would wait for each other. "
                "Every worker runs the whole script: make the same model in all, and seed all that "
                "is random before, for example with keras.utils.set_random_seed(1)."
            )

    def _check_configuration(self, of_root: list[str]) -> None:
        if of_root == self._configuration:
            return
        pairs = itertools.zip_longest(self._configuration, of_root, fillvalue="nothing")
        mine, theirs = next((a, b) for a, b in pairs if a != b)
        mine, theirs = (text.partition(":")[0] for text in (mine, theirs))
        what = f"has {mine} in place of {theirs}"
        if mine == theirs:
            what = f"configures one {mine} in another way"
        raise ConfigurationError(
            f"The model of this worker is not that of rank 0: it {what}. Together they would train "
            "one model by different rules. Every worker runs the whole script: make the same model "
            "in all. If the script takes settings from a place that all workers share, such as a "
            "database of trials, each worker gets others: choose them before the job starts."
        )

    def synchronise(self, communicator: Communicator, place: Assignment) -> None:
        """Brings this worker to the root's state, in two phases.

        First everything is received into fresh tensors. Nothing is assigned before all of it is
        here. A worker whose sync is interrupted keeps the state it had. The variables of newcomers
        may still be on their way when this returns, see `arrive`.

        Raises:
          CollectiveFailedError: a peer went away meanwhile; nothing has changed.
          ConfigurationError: rank 0 runs another release, or has another model or step.
          DataError: this worker reads other data than rank 0.
        """
        self.late_ranks = ()
        if place.sync and place.size > 1:
            groups = self._variables.groups
            state, arrival = broadcast.from_root(
                communicator,
                is_root=place.rank == 0,
                states=self._state_to_send,
                groups=groups,
                has_root_state=self._is_level,
                compare=not self.exists,  # all may have begun with the same weights
                may_be_equal=not self.exists,
                may_be_late=self._may_be_late,
                name="elastic_sync",
            )
            self.late_ranks, self._arrival = arrival.late_ranks, arrival
            self._compare_paths(state)
            if place.rank in arrival.late_ranks:
                self._go_on_without(state)
                return
            if place.rank != 0:
                self._take_over(state, arrival)
            if not arrival.late_ranks:
                self.end_sync()
        self.exists = True

    def _state_to_send(self) -> dict[str, Any]:
        paths = [list(pair) for pair in self._callbacks.paths]
        return {
            **self.state(),
            COLLECTIVES: self._collectives,
            CONFIGURATION: self._configuration,
            PATHS: paths,
        }

    def _compare_paths(self, state: dict[str, Any]) -> None:
        """Warns if the root's callbacks write elsewhere than the callbacks of this worker."""
        of_root = [tuple(pair) for pair in state.get(PATHS, ())]
        if different := [other for other in of_root if other not in self._callbacks.paths]:
            names = ", ".join(dict.fromkeys(name for name, _ in different))
            notices.tell(OTHER_PATHS.format(names, different[0][1]))

    def _is_level(self, state: dict[str, Any]) -> bool:
        """Whether this worker already holds the root's state: at one step, all states are equal."""
        parts.check_version(state, VERSION, checkpoint=None)
        return self.exists and bool(self.cursor.progress == state["cursor"]["progress"])

    def _take_over(self, state: dict[str, Any], arrival: Arrival) -> None:
        if self._is_level(state):
            return
        specs = state[broadcast.SPECS]
        pairs = match(self._variables.groups, specs, arrival.tensors(), ROOT, made_late=False)
        self.restore(state)
        for variable, tensor in pairs:
            variable.assign(tensor)

    # --- a state that comes while a step is computed ------------------------------------------

    @property
    def is_late(self) -> bool:
        """Whether the variables of this worker are on their way."""
        return self._coming is not None

    def _may_be_late(self, state: dict[str, Any]) -> bool:
        """Whether nothing reads or changes variables between a sync and the end of the next step.

        A worker with a state that is one step behind has to wait: it has been told of that step.
        """
        cursor = Cursor.from_json(state["cursor"])
        large = self._variables.num_bytes >= LEAST_LATE_BYTES
        in_epoch = cursor.phase is Phase.TRAIN and cursor.step > 0
        return not self.exists and large and in_epoch and self.may_be_late()

    def _go_on_without(self, state: dict[str, Any]) -> None:
        """Takes over the whole state but the variables."""
        specs = state[broadcast.SPECS]
        places = range(len(self._variables.all))
        match(self._variables.groups, specs, places, ROOT, made_late=False)
        self._before, self._coming = self.state(), specs
        self.restore(state)

    def arrive(self) -> None:
        """Waits for the variables, and assigns them.

        Raises:
          CollectiveFailedError: the variables do not come; nothing is assigned.
        """
        if self._coming is None or self._arrival is None:
            return
        began = time.monotonic()
        tensors = self._arrival.tensors()
        pairs = match(self._variables.groups, self._coming, tensors, ROOT, made_late=False)
        for variable, tensor in pairs:
            variable.assign(tensor)
        self._coming, self._before, self.exists = None, {}, True
        self.waited_s = time.monotonic() - began
        log.info("the state came %.3f s after the others' step", self.waited_s)
        self.end_sync()

    def end_sync(self) -> None:
        """Ends the transfer of late states. This worker sends nothing more, and expects nothing.

        If its own variables have not come, it goes back to the parts that it had before: maybe no
        worker is left that holds the variables.
        """
        if self._arrival is not None:
            self._arrival.close()
        if self._coming is not None:
            self.restore(self._before)
            self.may_be_late = never
        self._arrival, self._coming, self._before = None, None, {}


def _cursor_to_json(cursor: Cursor | None) -> dict[str, Any] | None:
    return None if cursor is None else cursor.to_json()


def _cursor_from_json(state: dict[str, Any] | None) -> Cursor | None:
    return None if state is None else Cursor.from_json(state)


def never() -> bool:
    """Returns False."""
    return False
