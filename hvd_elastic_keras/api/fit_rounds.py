"""The rounds in which a `fit` trains: its own, or those of the `elastic.run` around it."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol, TypeAlias

import keras

from hvd_elastic_keras.loop.callback_runner import CallbackRunner
from hvd_elastic_keras.loop.observer import Observer
from hvd_elastic_keras.loop.phase import PhaseRunner
from hvd_elastic_keras.state.run_state import RunState
from hvd_elastic_keras.worker.rounds import OwnRounds, Rounds

Terms: TypeAlias = dict[str, Any]
"""The length of a `fit`, as JSON values. All workers that take part in it have the same terms."""


@dataclasses.dataclass(eq=False)
class Prepared:
    """Everything that is ready for training. It is used again when the round has ended.

    Attributes:
      data: the objects that the user gave as data.
      function: the model's `train_function`; `compile` replaces it by another one.
      reset_calls: calls the user's functions for changes of the membership.
    """

    model: keras.Model
    runners: list[PhaseRunner]
    state: RunState
    callbacks: CallbackRunner
    reset_calls: Observer
    data: tuple[Any, ...] = ()
    function: Any = None

    def is_for(self, data: tuple[Any, ...], model: keras.Model) -> bool:
        """Returns whether it can be used again: it was made of these data and this model."""
        same_data = len(data) == len(self.data) and all(map(_is, data, self.data))
        return bool(data) and same_data and self.is_of(model)

    def is_of(self, model: keras.Model) -> bool:
        """Returns whether it was made of this model, and the model has not been compiled since."""
        return bool(model is self.model and model.train_function is self.function)


class FitRounds(Rounds, Protocol):
    """The rounds in which one `fit` trains."""

    @property
    def size(self) -> int:
        """Number of workers in the round in which `fit` was called; 1 outside of rounds."""

    @property
    def goes_on(self) -> bool:
        """Whether this `fit` continues one that an earlier round left unfinished."""

    @property
    def called_again(self) -> bool:
        """Whether a `fit` that a change cuts off is called again, with its data."""

    def agree(self, model: keras.Model, terms: Terms) -> Terms:
        """Returns the terms of all workers. All call it when they come to `fit`."""

    def prepared_for(self, data: tuple[Any, ...], model: keras.Model) -> Prepared | None:
        """Returns what this worker has prepared for the `fit` that continues, if usable."""


class OwnFitRounds(OwnRounds):
    """The rounds of an ordinary `fit`, which joins, enters and leaves them itself."""

    size = 1
    goes_on = False
    called_again = False

    def agree(self, model: keras.Model, terms: Terms) -> Terms:
        """Returns its own terms: all workers run the same script."""
        return terms

    def prepared_for(self, data: tuple[Any, ...], model: keras.Model) -> None:
        """Returns None: such a `fit` is never called again."""


def _is(a: Any, b: Any) -> bool:
    return a is b
