"""`fit` inside of a function of `elastic.run`: it trains in the round that is there.

The function begins anew in every round. A `fit` in it that a change of membership has ended goes on
where it was, on all workers, as soon as the function calls `fit` of the same model again: with the
epochs, the position in the data and the callbacks' state of rank 0. Its steps are atomic as always,
so that a change or a kill loses none of them: each counts as a commit of the elastic state.

Joining, entering and leaving rounds stays with `ElasticLoop`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import keras
import msgspec
from horovod.common.exceptions import HostsUpdatedInterrupt

from hvd_elastic_keras.common.errors import CollectiveFailedError
from hvd_elastic_keras.common.protocol import Assignment
from hvd_elastic_keras.loop.callback_runner import CallbackRunner
from hvd_elastic_keras.loop.observer import Observer
from hvd_elastic_keras.loop.phase import PhaseRunner
from hvd_elastic_keras.state import json_codec
from hvd_elastic_keras.state.run_state import RunState
from hvd_elastic_keras.worker.horovod_runtime import Communicator
from hvd_elastic_keras.worker.process_rounds import ProcessRounds
from hvd_elastic_keras.worker.session import EntryReport, Session

if TYPE_CHECKING:
    from hvd_elastic_keras.api.elastic_state import ElasticState

Terms = dict[str, Any]
"""How long a `fit` is, in terms of JSON: the same for all workers that take part in it."""
Position = dict[str, Any]
"""Where a `fit` is that has not ended, in terms of JSON and bytes; part of the elastic state."""


@dataclasses.dataclass(eq=False)
class Prepared:
    """What is ready for training, and is used again when the round has ended.

    Attributes:
      data: the objects that the user gave as data.
      function: the model's `train_function`: another one after `compile`.
      rounds: tells the user of the rounds.
    """

    model: keras.Model
    runners: list[PhaseRunner]
    state: RunState
    callbacks: CallbackRunner
    rounds: Observer
    data: tuple[Any, ...] = ()
    function: Any = None

    def is_for(self, data: tuple[Any, ...], model: keras.Model) -> bool:
        """Whether it can be used again: nothing that it was made of is another object now."""
        same_data = len(data) == len(self.data) and all(map(_is, data, self.data))
        return bool(data) and same_data and self.is_of(model)

    def is_of(self, model: keras.Model) -> bool:
        """Whether it was made of this model as it is compiled now."""
        return bool(model is self.model and model.train_function is self.function)


class RoundOverError(Exception):
    """The round has ended; `failure` says why, if a collective failed. Never seen by users."""

    def __init__(self, failure: str) -> None:
        super().__init__(failure)
        self.failure = failure


class FitsInside:
    """The calls of `fit` in one call of an elastic function, from its first round to its end.

    Args:
      after_step: called when a step and its callbacks are done, with what makes the elastic state
        keep all that has been trained so far.
    """

    def __init__(
        self,
        rounds: ProcessRounds,
        state: ElasticState,
        after_step: Callable[[Callable[[], None]], None] = lambda keep: None,
    ) -> None:
        self.state = state
        self.after_step = after_step
        self.resets = False
        """Whether reset callbacks run: what trains then trains alone."""
        self.goes_on = False
        """Whether the present `fit` goes on where an earlier round has left it."""
        self._rounds = rounds
        self._prepared: Prepared | None = None
        self._terms: Terms = {}

    @property
    def size(self) -> int:
        """Number of workers in the round."""
        return self._rounds.size

    @contextlib.contextmanager
    def offered(self, *, resets: bool = False) -> Iterator[None]:
        """Lets `fit` find this while it lasts."""
        outer = _Current.fits
        _Current.fits, self.resets = self, resets
        try:
            yield
        finally:
            _Current.fits, self.resets = outer, False

    def agree(self, model: keras.Model, terms: Terms) -> Terms:
        """The terms of rank 0: those of the `fit` that it goes on with, or else these.

        A collective: all workers of the round call it when they come to `fit`.
        """
        position = self.state.fit_position
        if position is not None and position["of_state"] != (model is self.state.model):
            position = None
        content: dict[str, Any] = {"goes_on": False, "terms": terms}
        if position is not None:
            content |= {"goes_on": True, "terms": position["terms"]}
        if self.size > 1:
            communicator = self._rounds.communicator
            is_root = self._rounds.place.rank == 0
            mine = json.dumps(content, default=int).encode() if is_root else b""
            with communicator.collective():
                content = json.loads(communicator.broadcast_bytes(mine, "elastic_fit"))
        self.goes_on = bool(content["goes_on"])
        self.state.fit_position = position if self.goes_on else None
        self._terms = cast(Terms, content["terms"])
        return self._terms

    def prepared_for(self, data: tuple[Any, ...], model: keras.Model) -> Prepared | None:
        """What this worker has prepared for the `fit` that goes on."""
        prepared = self._prepared
        usable = self.goes_on and prepared is not None and prepared.is_for(data, model)
        return prepared if usable else None

    def take_up(self, state: RunState) -> None:
        """Brings a `fit` that goes on to where this worker knows that it was."""
        position = self.state.fit_position
        if position is None:
            return
        state.restore(position["run"])
        # Who is new in it takes all from rank 0, also what the elastic state does not hold.
        state.exists = self._prepared is not None or self._rounds.place.rank == 0
        metrics, values = state.variables.metrics, json_codec.decode(position["metrics"])
        if len(metrics) == len(values):
            for variable, value in zip(metrics, values, strict=True):
                variable.assign(value)

    @property
    def session(self) -> Session:
        """That of the round, of which one `fit` can only ask for things."""
        return cast(Session, RoundSession(self._rounds, self))

    @property
    def communicator(self) -> Communicator:
        """That of the round: it is initialised, and stays so."""
        return cast(Communicator, LiveCommunicator(self._rounds.communicator))

    def keep(self) -> None:
        """Keeps all that `fit` has trained so far. To be called between two steps."""
        prepared = self._prepared
        if prepared is None:
            return
        self.state.fit_position = {
            "of_state": prepared.model is self.state.model,
            "terms": self._terms,
            "run": prepared.state.state(),
            "metrics": json_codec.encode([v.numpy() for v in prepared.state.variables.metrics]),
        }
        self.state.keep_as_it_is()

    @contextlib.contextmanager
    def until_end_of_round(self, prepared: Prepared) -> Iterator[None]:
        """Keeps what is trained so far when the round ends, and ends the function with it.

        Raises:
          HostsUpdatedInterrupt, CollectiveFailedError: for `ElasticLoop`, after which the state
            is that of the last finished step.
        """
        self._prepared = prepared
        self.state.in_fit = True
        try:
            yield
        except RoundOverError as over:
            self.keep()
            if over.failure:
                raise CollectiveFailedError(over.failure) from None
            raise HostsUpdatedInterrupt(skip_sync=False) from None
        finally:
            self.state.in_fit = False
        self._prepared = self.state.fit_position = None


class _Current:
    fits: FitsInside | None = None


def current() -> FitsInside | None:
    """The function of `elastic.run` that this process is in, if it is in one."""
    fits = _Current.fits
    return None if fits is None or fits.resets else fits


def inputs_left(data: tuple[Any, ...], model: keras.Model) -> list[Any]:
    """The inputs of the `fit` that goes on here, if it is given the same data again."""
    fits = current()
    prepared = None if fits is None else fits.prepared_for(data, model)
    return [] if prepared is None else [runner.input for runner in prepared.runners]


def in_reset_callbacks() -> bool:
    """Whether the reset callbacks of an elastic state are running."""
    return _Current.fits is not None and _Current.fits.resets


class LiveCommunicator:
    """Horovod in a round that somebody else begins and ends."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._communicator, name)

    def start(self, place: Assignment) -> None:
        """It is initialised already."""

    def start_alone(self) -> None:
        """It is initialised already."""

    def shut_down(self) -> None:
        """It goes on after `fit`."""

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Collectives are kept throughout the round."""
        yield


class RoundSession:
    """One round, which has been entered already, for one `fit`. Asking for another one ends it."""

    def __init__(self, rounds: ProcessRounds, fits: FitsInside) -> None:
        self._rounds = rounds
        self._fits = fits
        self._state = fits.state
        self._entered = False
        self._before: int | None = None
        self._progress = -1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rounds.session, name)

    def join(self, *_: Any, **__: Any) -> None:
        """This worker has joined."""

    def enter(self, report: EntryReport) -> Assignment:
        """The place in the round that is there, once."""
        if self._entered:
            self._count(report.progress)
            raise RoundOverError(report.failure)
        self._entered = True
        return msgspec.structs.replace(self._rounds.place, root_has_state=self._fits.goes_on)

    def running(self, step: int) -> None:
        """The master knows."""

    def at(self, phase: str, step: int, progress: int) -> None:
        """Counts every atomic step as a commit of the elastic state.

        Called after a step, and again when its callbacks are done and the next one begins.
        """
        if self._before is None:
            self._before = self._state.num_commits - progress
        self._count(progress)
        self._rounds.session.at(phase, self._state.num_commits, self._state.progress)
        begins, self._progress = progress == self._progress, progress
        if begins:
            self._fits.after_step(self._fits.keep)

    def reading(self, position: object) -> None:
        """Nobody reads along: newcomers are in the round."""

    def finish(self) -> None:
        """The function goes on."""

    def _count(self, progress: int) -> None:
        if self._before is not None:
            self._state.num_commits = self._before + progress


def _is(a: Any, b: Any) -> bool:
    return a is b
