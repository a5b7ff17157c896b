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
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import keras
import msgspec
from horovod.common.exceptions import HostsUpdatedInterrupt

from hvd_elastic_keras.api.fit_rounds import FitRounds, OwnFitRounds, Prepared, Terms
from hvd_elastic_keras.common.errors import CollectiveFailedError
from hvd_elastic_keras.common.protocol import Assignment, InputPosition
from hvd_elastic_keras.state import json_codec
from hvd_elastic_keras.state.run_state import RunState
from hvd_elastic_keras.worker.abortable import Abortable
from hvd_elastic_keras.worker.horovod_runtime import Communicator
from hvd_elastic_keras.worker.membership import Membership
from hvd_elastic_keras.worker.reporter import Reporter
from hvd_elastic_keras.worker.rounds import ProcessRounds
from hvd_elastic_keras.worker.session import EntryReport, Session

if TYPE_CHECKING:
    from hvd_elastic_keras.api.elastic_loop.elastic_state import ElasticState


Position = dict[str, Any]
"""The position of an unfinished `fit`, as JSON values and bytes; part of the elastic state."""


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

    Attributes:
      prepared: what the present `fit` has prepared, until it has trained to its end.
    """

    def __init__(
        self,
        rounds: ProcessRounds,
        state: ElasticState,
        after_step: Callable[[Callable[[], None]], None] = lambda keep: None,
    ) -> None:
        self.rounds = rounds
        self.state = state
        self.after_step = after_step
        self.prepared: Prepared | None = None

    @contextlib.contextmanager
    def offered(self, *, resets: bool = False) -> Iterator[None]:
        """Lets `fit` find this object within a `with` statement.

        Args:
          resets: whether reset callbacks run: a `fit` in them trains on this worker alone.
        """
        outer = (_Around.function, _Around.resets)
        _Around.function, _Around.resets = self, resets
        try:
            yield
        finally:
            _Around.function, _Around.resets = outer


class _Around:
    """The call of an elastic function around the code that runs now.

    A user's function calls `model.fit(...)` without a reference to the loop around it. This is the
    only place where a `fit` can find that loop.
    """

    function: FitsInside | None = None
    resets = False


def function_around() -> FitsInside | None:
    """Returns the elastic function in which `fit` trains; None outside and in reset callbacks."""
    return None if _Around.resets else _Around.function


def in_reset_callbacks() -> bool:
    """Returns whether the reset callbacks of an elastic state are running."""
    return _Around.resets


def rounds_of_fit(membership: Membership | None = None) -> FitRounds:
    """Returns the rounds in which a `fit` trains that is called now. Call it once for each `fit`.

    Args:
      membership: the membership of an ordinary `fit`; None means the one of this process.
    """
    function = function_around()
    if function is None:
        return OwnFitRounds(membership or Membership.of_process())
    return RoundInside(function)


class RoundInside:
    """The round that `ElasticLoop` has entered, for one `fit`: `FitRounds`."""

    called_again = True

    def __init__(self, function: FitsInside) -> None:
        self.goes_on = False
        """Whether this `fit` continues one that an earlier round left unfinished."""
        self._function = function
        self.state = function.state
        self._rounds = function.rounds
        self._terms: Terms = {}
        self._session = RoundSession(self._rounds, self)

    @property
    def membership(self) -> Membership:
        """The membership of this process."""
        return self._rounds.membership

    @property
    def session(self) -> Session:
        """A session for one `fit` within the round that has been entered already."""
        return self._session

    @property
    def communicator(self) -> Communicator:
        """The communicator of the round, which is initialised and stays initialised."""
        return self._rounds.communicator

    @property
    def size(self) -> int:
        """Number of workers in the round."""
        return self._rounds.size

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Does nothing: Horovod stays initialised, and graphs keep their collectives."""
        yield

    def begin(self, place: Assignment) -> None:
        """Does nothing: Horovod is already initialised."""

    def end(self) -> None:
        """Does nothing: the round goes on after `fit`."""

    def agree(self, model: keras.Model, terms: Terms) -> Terms:
        """Returns rank 0's terms: from the `fit` that it continues, or else its own `terms`.

        This is a collective: all workers of the round call it when they come to `fit`.
        """
        position = self.state.fit_position
        if position is not None and position["of_state"] != (model is self.state.model):
            position = None
        goes_on, agreed = position is not None, position["terms"] if position else terms
        if self.size > 1:
            communicator = self.communicator
            is_root = self._rounds.place.rank == 0
            content = {"goes_on": goes_on, "terms": agreed}
            mine = json.dumps(content, default=int).encode() if is_root else b""
            with communicator.collective():
                content = json.loads(communicator.broadcast_bytes(mine, "elastic_fit"))
            goes_on, agreed = bool(content["goes_on"]), content["terms"]
        self.goes_on, self._terms = goes_on, agreed
        self.state.fit_position = position if goes_on else None
        return self._terms

    def prepared_for(self, data: tuple[Any, ...], model: keras.Model) -> Prepared | None:
        """Returns what this worker has prepared for the `fit` that continues, if usable."""
        prepared = self._function.prepared
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
        state.exists = self._function.prepared is not None or self._rounds.place.rank == 0
        metrics, values = state.variables.metrics, json_codec.decode(position["metrics"])
        if len(metrics) == len(values):
            for variable, value in zip(metrics, values, strict=True):
                variable.assign(value)

    def after_step(self) -> None:
        """Tells the function that a step and its callbacks are done."""
        self._function.after_step(self.keep)

    def keep(self) -> None:
        """Keeps everything that `fit` has trained so far. Call it between two steps."""
        prepared = self._function.prepared
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
        self._function.prepared = prepared
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
        self._function.prepared = self.state.fit_position = None


class RoundSession:
    """A round that has already been entered, for one `fit`. Asking for another round ends it."""

    def __init__(self, rounds: ProcessRounds, inside: RoundInside) -> None:
        self._rounds = rounds
        self._inside = inside
        self._reporter = RoundReporter(rounds.session.reporter, inside)
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
        return msgspec.structs.replace(self._rounds.place, root_has_state=self._inside.goes_on)

    def running(self, step: int, phase: str) -> None:
        """Does nothing: the master already knows."""

    def finish(self, *, raised: bool = False) -> None:
        """Does nothing: the function of `elastic.run` goes on after `fit`."""


class RoundReporter:
    """Reports the steps of one `fit` as commits of the elastic state."""

    def __init__(self, reporter: Reporter, inside: RoundInside) -> None:
        self._after_step = inside.after_step
        self._state = inside.state
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
            self._after_step()

    def count(self, progress: int) -> None:
        """Counts the steps that led to this progress of the `fit`."""
        if self._before is not None:
            self._state.num_commits = self._before + progress
