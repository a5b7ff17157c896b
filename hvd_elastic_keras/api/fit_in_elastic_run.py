"""`fit` inside a function of `elastic.run`: trains in the present round.

The function starts again in every round. A change of membership may end a `fit` in it. This `fit`
continues where it stopped, on all workers, as soon as the function calls `fit` of the same model
again. It continues with the epochs, the position in the data and the callbacks' state of rank 0.
Its steps are atomic as always, and each counts as a commit of the elastic state. A change or a kill
therefore loses none of them.

`ElasticLoop` still joins, enters and leaves rounds.
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
from hvd_elastic_keras.common.protocol import Assignment, InputPosition
from hvd_elastic_keras.loop.callback_runner import CallbackRunner
from hvd_elastic_keras.loop.observer import Observer
from hvd_elastic_keras.loop.phase import PhaseRunner
from hvd_elastic_keras.state import json_codec
from hvd_elastic_keras.state.run_state import RunState
from hvd_elastic_keras.worker.abortable import Abortable
from hvd_elastic_keras.worker.horovod_runtime import Communicator
from hvd_elastic_keras.worker.process_rounds import ProcessRounds
from hvd_elastic_keras.worker.reporter import Reporter
from hvd_elastic_keras.worker.session import EntryReport, Session

if TYPE_CHECKING:
    from hvd_elastic_keras.api.elastic_state import ElasticState

Terms = dict[str, Any]
"""The length of a `fit`, as JSON values. All workers that take part in it have the same terms."""
Position = dict[str, Any]
"""The position of an unfinished `fit`, as JSON values and bytes; part of the elastic state."""


@dataclasses.dataclass(eq=False)
class Prepared:
    """Everything that is ready for training. It is used again when the round has ended.

    Attributes:
      data: the objects that the user gave as data.
      function: the model's `train_function`; `compile` replaces it by another one.
      rounds: calls the user's functions for changes of the membership.
    """

    model: keras.Model
    runners: list[PhaseRunner]
    state: RunState
    callbacks: CallbackRunner
    rounds: Observer
    data: tuple[Any, ...] = ()
    function: Any = None

    def is_for(self, data: tuple[Any, ...], model: keras.Model) -> bool:
        """Returns whether it can be used again: it was made of these data and this model."""
        same_data = len(data) == len(self.data) and all(map(_is, data, self.data))
        return bool(data) and same_data and self.is_of(model)

    def is_of(self, model: keras.Model) -> bool:
        """Returns whether it was made of this model, and the model has not been compiled since."""
        return bool(model is self.model and model.train_function is self.function)


class RoundOverError(Exception):
    """The round has ended. `failure` says why if a collective failed. Users never see it."""

    def __init__(self, failure: str) -> None:
        super().__init__(failure)
        self.failure = failure


class FitsInside:
    """The calls of `fit` in one call of an elastic function, from its first round to its end.

    Args:
      after_step: called when a step and its callbacks are done. Its argument is a function that
        makes the elastic state keep everything trained so far.
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
        """Whether reset callbacks are running: a `fit` in them trains on this worker alone."""
        self.goes_on = False
        """Whether the present `fit` continues one that an earlier round left unfinished."""
        self._rounds = rounds
        self._prepared: Prepared | None = None
        self._terms: Terms = {}

    @property
    def size(self) -> int:
        """Number of workers in the round."""
        return self._rounds.size

    @contextlib.contextmanager
    def offered(self, *, resets: bool = False) -> Iterator[None]:
        """Makes this the object that `current` returns, within a `with` statement."""
        outer = _Current.fits
        _Current.fits, self.resets = self, resets
        try:
            yield
        finally:
            _Current.fits, self.resets = outer, False

    def agree(self, model: keras.Model, terms: Terms) -> Terms:
        """Returns rank 0's terms: from the `fit` that it continues, or else its own `terms`.

        This is a collective: all workers of the round call it when they come to `fit`.
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
        """Returns what this worker has prepared for the `fit` that continues, if usable."""
        prepared = self._prepared
        usable = self.goes_on and prepared is not None and prepared.is_for(data, model)
        return prepared if usable else None

    def take_up(self, state: RunState) -> None:
        """Brings a `fit` that continues to the last position that this worker knows."""
        position = self.state.fit_position
        if position is None:
            return
        state.restore(position["run"])
        # A worker that is new in this `fit` takes everything from rank 0, including what the
        # elastic state does not hold.
        state.exists = self._prepared is not None or self._rounds.place.rank == 0
        metrics, values = state.variables.metrics, json_codec.decode(position["metrics"])
        if len(metrics) == len(values):
            for variable, value in zip(metrics, values, strict=True):
                variable.assign(value)

    @property
    def session(self) -> Session:
        """A session for one `fit` within the round that has been entered already."""
        return RoundSession(self._rounds, self)

    @property
    def communicator(self) -> Communicator:
        """The communicator of the round, which is initialised and stays initialised."""
        return cast(Communicator, LiveCommunicator(self._rounds.communicator))

    def keep(self) -> None:
        """Keeps everything that `fit` has trained so far. Call it between two steps."""
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
        """Keeps everything trained so far when the round ends, and then ends the function.

        Raises:
          HostsUpdatedInterrupt, CollectiveFailedError: for `ElasticLoop`; the state is then the
            state of the last finished step.
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
    """Returns the calls of `fit` in the running function of `elastic.run`; None outside of one.

    Returns None in reset callbacks, too.
    """
    fits = _Current.fits
    return None if fits is None or fits.resets else fits


def inputs_left(data: tuple[Any, ...], model: keras.Model) -> list[Any]:
    """Returns the inputs of the `fit` that continues here, if it gets the same data again."""
    fits = current()
    prepared = None if fits is None else fits.prepared_for(data, model)
    return [] if prepared is None else [runner.input for runner in prepared.runners]


def in_reset_callbacks() -> bool:
    """Returns whether the reset callbacks of an elastic state are running."""
    return _Current.fits is not None and _Current.fits.resets


class LiveCommunicator:
    """Horovod in a round that `ElasticLoop` begins and ends."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._communicator, name)

    def start(self, place: Assignment) -> None:
        """Does nothing: Horovod is already initialised."""

    def start_alone(self) -> None:
        """Does nothing: Horovod is already initialised."""

    def shut_down(self) -> None:
        """Does nothing: the round goes on after `fit`."""

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Does nothing: graphs keep their collectives throughout the round."""
        yield


class RoundSession:
    """A round that has already been entered, for one `fit`. Asking for another round ends it."""

    def __init__(self, rounds: ProcessRounds, fits: FitsInside) -> None:
        self._rounds = rounds
        self._fits = fits
        self._reporter = RoundReporter(rounds.session.reporter, fits)
        self._entered = False

    @property
    def training(self) -> int:
        """Number of the training of the whole function."""
        return self._rounds.session.training

    @property
    def reporter(self) -> RoundReporter:
        """Counts steps as commits."""
        return self._reporter

    @property
    def change_pending(self) -> bool:
        """Whether all workers have to leave the round after the current step."""
        return self._rounds.session.change_pending

    def on_change(self, call: Callable[[], None]) -> None:
        """Sets a function to call in a background thread when `change_pending` may have changed."""
        self._rounds.session.on_change(call)

    def join(
        self,
        communicator: Abortable,
        num_micro_batches: int,
        warm_up_s: float,
        each: bool = False,
    ) -> None:
        """Does nothing: this worker has already joined."""

    def enter(self, report: EntryReport) -> Assignment:
        """Returns the place in the present round. A second call ends the round."""
        if self._entered:
            self._reporter.count(report.progress)
            raise RoundOverError(report.failure)
        self._entered = True
        return msgspec.structs.replace(self._rounds.place, root_has_state=self._fits.goes_on)

    def running(self, step: int) -> None:
        """Does nothing: the master already knows."""

    def finish(self) -> None:
        """Does nothing: the function of `elastic.run` goes on after `fit`."""


class RoundReporter:
    """Reports the steps of one `fit` as commits of the elastic state."""

    def __init__(self, reporter: Reporter, fits: FitsInside) -> None:
        self._fits = fits
        self._state = fits.state
        self._before: int | None = None
        self._progress = -1
        self._at = reporter.at
        self.passes = reporter.passes
        self.show = reporter.show
        self.record = reporter.record
        self.tell = reporter.tell

    def at(
        self,
        phase: str,
        step: int,
        progress: int,
        reading: InputPosition | None = None,
    ) -> None:
        """Counts every atomic step as a commit of the elastic state.

        The loop calls this after a step. It calls this again when the callbacks of the step are
        done and the next step begins. The batch that is read is not told: newcomers are already in
        the round, so none reads along.
        """
        if self._before is None:
            self._before = self._state.num_commits - progress
        self.count(progress)
        self._at(phase, self._state.num_commits, self._state.progress)
        begins, self._progress = progress == self._progress, progress
        if begins:
            self._fits.after_step(self._fits.keep)

    def count(self, progress: int) -> None:
        """Counts the steps that led to this progress of the `fit`."""
        if self._before is not None:
            self._state.num_commits = self._before + progress


def _is(a: Any, b: Any) -> bool:
    return a is b
