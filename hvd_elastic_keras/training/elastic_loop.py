"""`elastic.run`: calls a training function of the user's own in one round after the other.

    until the function has returned and everybody knows it:
        enter a round            wait for a place, hvd.init()
        call reset callbacks     rank and size are those of the round
        sync                     if somebody is behind rank 0
        call the function        until it returns, the membership changes, or a collective fails

The order within a round is that of `run_fn` in `horovod/common/elastic.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

from hvd_elastic_keras import env
from hvd_elastic_keras.config import SPEED
from hvd_elastic_keras.errors import (
    CollectiveFailedError,
    ConfigurationError,
    TrainingOverError,
    WorkerLeavingError,
)
from hvd_elastic_keras.protocol import Assignment
from hvd_elastic_keras.training.elastic_state import ElasticState
from hvd_elastic_keras.training.failures import UnexplainedFailures
from hvd_elastic_keras.worker.rounds import Rounds, rounds_of_process
from hvd_elastic_keras.worker.session import EntryReport

log = logging.getLogger(__name__)

T = TypeVar("T")


def run(function: Callable[..., T]) -> Callable[..., T | None]:
    """Makes a training function elastic; also as a decorator.

    `function(state, *args, **kwargs)` is called anew in every round and goes on from what `state`
    holds. The same script runs alone, with one worker, and under
    `python -m hvd_elastic_keras.run`.

    - A collective fails because a worker is gone: the state goes back to the last commit.
    - The membership is to change and all workers meet in `state.commit()` or
      `state.check_host_updates()`: nothing is lost.
    - The function returns: so does the wrapper, when all workers of the round are as far. Horovod
      stays initialised, so that rank and size remain those of the last round. A worker that was
      behind when others had finished takes their state and returns None without calling the
      function again.
    - The job has finished this training before the worker came: the wrapper returns None at once.
      The worker is in no round then, so that `hvd.rank()` raises.

    A worker that has to leave before the end (SIGTERM, `ctl remove`) ends its process with exit
    code 0.

    Raises (the wrapper):
      ConfigurationError: the first argument is not an elastic state.
      MasterUnreachableError: the launcher is gone.
      CollectiveFailedError: the same step fails again and again although nobody is lost.
    """

    @functools.wraps(function)
    def wrapper(state: ElasticState, *args: Any, **kwargs: Any) -> T | None:
        if not isinstance(state, ElasticState):
            raise ConfigurationError(
                f"The function of elastic.run was called with a {type(state).__name__} first, "
                "expected an elastic.ElasticState."
            )
        loop = ElasticLoop(rounds_of_process(), state, lambda: function(state, *args, **kwargs))
        result: T | None = loop.run()
        return result

    return wrapper


@dataclasses.dataclass
class ElasticLoop:
    """Drives one call of an elastic function from its first round to its end."""

    rounds: Rounds
    state: ElasticState
    function: Callable[[], Any]
    _warned: bool = False
    _result: Any = None
    _failure: str = ""
    _failures: UnexplainedFailures = dataclasses.field(default_factory=UnexplainedFailures)

    def run(self) -> Any:
        """Calls the function until all have finished, and returns its result."""
        self.state.begin()
        self.rounds.join()
        try:
            while not self._round(self._enter()):
                pass
        except WorkerLeavingError as error:
            self.rounds.membership.end_process(error)
        except TrainingOverError as error:
            log.info("the function is not called: %s", error)
            return None
        self.rounds.session.finish()
        return self._result

    def _enter(self) -> Assignment:
        self.rounds.leave()
        state = self.state
        report = EntryReport(state.exists, state.progress, state.commits, self._failure)
        self._failure = ""
        return self.rounds.session.enter(report)

    def _round(self, place: Assignment) -> bool:
        """Whether everybody has finished; else the next round is due."""
        try:
            with self._failures_told_apart(place):
                self.rounds.start(place)
                self._prepare(place)
                self._train_to_the_end()
        except HostsUpdatedInterrupt:
            log.info("round %d ends after commit %d", place.round, self.state.commits)
            return False
        except CollectiveFailedError as error:
            self._failure = str(error)
            log.info("%s", error)
            self._note(error, place)
            self.state.restore()
            return False
        except BaseException:
            # An error of the user's own: the others are to hear of it at once.
            self.rounds.leave()
            raise
        return True

    def _prepare(self, place: Assignment) -> None:
        if not self.state.finished:
            self.state.on_reset()
        if place.sync and place.size > 1:
            self.state.sync()
        else:
            self.state.keep_without_sync()
        session = self.rounds.session
        session.at("training", self.state.commits, self.state.progress)
        session.running(self.state.commits)
        self._warn(place)
        where = (place.round, place.rank, place.size, self.state.commits)
        log.info("round %d: rank %d of %d at commit %d", *where)

    def _warn(self, place: Assignment) -> None:
        """Of what `run` was asked for and only trainings of this package can do."""
        asked = {
            "--audit": env.audit(),
            "--balance=speed": env.balance() == SPEED,
            "--deterministic": env.deterministic(),
        }
        given = ", ".join(flag for flag, is_asked in asked.items() if is_asked)
        if given and place.rank == 0 and not self._warned:
            self.rounds.session.show(
                f"warning: {given} has no effect on a training loop of your own (elastic.run)\n"
            )
        self._warned = True

    def _train_to_the_end(self) -> None:
        state = self.state
        if state.finished:
            log.info("the function has returned on a worker that is further: not called again")
        else:
            self._result = self.function()
            state.finish()
        self.rounds.session.at("finishing", state.commits, state.progress)
        if self.rounds.size > 1:
            self.rounds.communicator.barrier("elastic_state.finish")

    @contextlib.contextmanager
    def _failures_told_apart(self, place: Assignment) -> Iterator[None]:
        """Turns failures of the user's collectives into `CollectiveFailedError`.

        By type, as everywhere in this package; alone, no collective can fail.
        """
        communicator = self.rounds.communicator
        try:
            with communicator.collective() if place.size > 1 else contextlib.nullcontext():
                yield
        except HorovodInternalError as error:
            raise CollectiveFailedError(f"a collective failed: {error}") from error

    def _note(self, error: CollectiveFailedError, place: Assignment) -> None:
        try:
            self._failures.note(
                self.state.progress,
                place.members,
                error,
                what="The function of elastic.run",
                where=f" after commit {self.state.commits}",
                whose="the function itself",
            )
        except CollectiveFailedError:
            self.rounds.leave()
            raise
