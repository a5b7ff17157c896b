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

from hvd_elastic_keras.api.elastic_checkpoints import LoopCheckpoints
from hvd_elastic_keras.api.elastic_state import ElasticState
from hvd_elastic_keras.api.fit_in_elastic_run import FitsInside
from hvd_elastic_keras.api.retracing import TracedAnew
from hvd_elastic_keras.common import env
from hvd_elastic_keras.common.errors import (
    CollectiveFailedError,
    ConfigurationError,
    TrainingOverError,
    WorkerLeavingError,
)
from hvd_elastic_keras.common.options import SPEED
from hvd_elastic_keras.common.protocol import Assignment
from hvd_elastic_keras.data.sources.dropped_iterators import deleted_in_background
from hvd_elastic_keras.loop.failures import FailedAt
from hvd_elastic_keras.loop.other_records import CommitRecords
from hvd_elastic_keras.loop.parting import Fence, Parting
from hvd_elastic_keras.loop.round_driver import drive
from hvd_elastic_keras.worker.process_rounds import ProcessRounds, rounds_of_process
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
        call = functools.partial(function, state, *args, **kwargs)
        loop = ElasticLoop(rounds_of_process(), state, call, TracedAnew(function))
        result: T | None = loop.run()
        return result

    return wrapper


@dataclasses.dataclass
class ElasticLoop:
    """Drives one call of an elastic function from its first round to its end."""

    rounds: ProcessRounds
    state: ElasticState
    function: Callable[[], Any]
    traced: TracedAnew
    _checkpoints: LoopCheckpoints = dataclasses.field(init=False)
    _fence: Fence = dataclasses.field(init=False)
    _is_root: bool = False
    _round: int = 0
    _rounds_entered: int = 0
    _warned: bool = False
    _result: Any = None
    _fits: FitsInside = dataclasses.field(init=False)
    _records: CommitRecords = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self._fits = FitsInside(self.rounds, self.state, self._after_step_of_fit)
        self._records = CommitRecords(self.rounds.session)

    def run(self) -> Any:
        """Calls the function until all have finished, and returns its result."""
        self.state.begin(self._after_commit)
        self.rounds.join()
        membership = self.rounds.membership
        job_dir = membership.environment.job_path if membership.environment else None
        self._fence = Fence(job_dir, self.rounds.session.term)
        self._checkpoints = LoopCheckpoints(
            job_dir, self.state, self.rounds.session, options=env.run_options()
        )
        self.rounds.leave()  # a script may have initialised Horovod for itself
        try:
            with deleted_in_background():
                drive(self)
        except WorkerLeavingError as error:
            membership.end_process(error)
        except TrainingOverError as error:
            log.info("the function is not called: %s", error)
            self._checkpoints.load_result()
            return self._checkpoints.result
        self.rounds.session.finish()
        return self._result

    # --- rounds, see `Driven` ------------------------------------------------------------

    def enter(self, failure: str) -> Assignment:
        """Waits for a place in the next round, with the last commit."""
        state = self.state
        report = EntryReport(state.exists, state.progress, state.num_commits, failure)
        return self.rounds.session.enter(report)

    def on_order_to_leave(self, parting: Parting) -> None:
        """Saves the state on rank 0 if maybe nobody is left who holds it."""
        if self._is_root and self._fence.lets_write(parting, self._round):
            self._checkpoints.save()

    def take_part(self, place: Assignment) -> bool:
        """Calls the function in a round. Returns whether everybody has finished."""
        try:
            with self._failures_told_apart(place):
                self.rounds.start(place)
                self._prepare(place)
                self._train_to_the_end(place)
        except HostsUpdatedInterrupt:
            log.info("round %d ends after commit %d", place.round, self.state.num_commits)
            return False
        return True

    def failed_at(self) -> FailedAt:
        """The state is that of the last commit, or will be."""
        return FailedAt(
            self.state.progress,
            what="The function of elastic.run",
            where=f" after commit {self.state.num_commits}",
            whose="the function itself",
        )

    def restore(self, error: CollectiveFailedError) -> None:
        """Goes back to the last commit."""
        self.state.restore()

    def leave(self, place: Assignment, *, finished: bool) -> None:
        """Shuts Horovod down at once, so that others hear of an error of the user's own."""
        if not finished:  # the last round stays: rank and size are asked for after it
            self.rounds.leave()

    # --- what happens in a round -----------------------------------------------------------

    def _after_commit(self) -> None:
        if self._is_root:
            self._checkpoints.after_commit()
            self._records.after_commit(self.state.num_commits)
        text = self.traced.first_commit()
        is_new = self._rounds_entered == 1
        if text and (self._is_root or is_new):
            environment = self.rounds.membership.environment
            who = f"{environment.worker_id}: " if environment else ""
            self.rounds.session.show(f"warning: {who}{text}\n")

    def _after_step_of_fit(self, keep: Callable[[], None]) -> None:
        """`fit` in the function stands between two steps, each of which is as good as a commit."""
        self._records.leave_to_fit()
        if self._is_root and self._checkpoints.is_due():
            keep()
            self._checkpoints.after_commit()

    def _prepare(self, place: Assignment) -> None:
        self._rounds_entered += 1
        self._is_root, self._round = place.rank == 0, place.round
        self._records.begin_round()
        if self._is_root and not place.root_has_state:
            self._checkpoints.load()
        if not self.state.finished:
            with self._fits.offered(resets=True):
                self.state.on_reset()
        if place.sync and place.size > 1:
            self.state.sync()
        else:
            self.state.keep_without_sync()
        session = self.rounds.session
        session.at("training", self.state.num_commits, self.state.progress)
        session.running(self.state.num_commits)
        self._warn(place)
        where = (place.round, place.rank, place.size, self.state.num_commits)
        log.info("round %d: rank %d of %d at commit %d", *where)

    def _warn(self, place: Assignment) -> None:
        """Of what cannot be sent, and of what only trainings of this package can do."""
        options = env.run_options()
        asked = {
            "--audit": options.audit,
            "--balance=speed": options.balance == SPEED,
            "--deterministic": options.deterministic,
        }
        given = ", ".join(flag for flag, is_asked in asked.items() if is_asked)
        if given and place.rank == 0 and not self._warned:
            self.rounds.session.tell(
                f"warning: {given} has no effect on a training loop of your own (elastic.run)"
            )
        lost = self.state.what_is_lost()
        if lost and place.rank == 0 and not place.root_has_state and not self._warned:
            self.rounds.session.tell(f"warning: {lost}")
        self._warned = True

    def _train_to_the_end(self, place: Assignment) -> None:
        state = self.state
        if state.finished:
            log.info("the function has returned on a worker that is further: not called again")
            if not place.root_has_state:  # in an earlier run of the job
                self._checkpoints.load_result()
                self._result = self._checkpoints.result
        else:
            if place.root_has_state:
                self.traced.begin_round()
            with self._fits.offered():
                self._result = self.function()
            state.finish()
            if self._is_root:
                self._records.end()
        if self._is_root:
            self._checkpoints.save(self._result)
        self.rounds.session.at("finishing", state.num_commits, state.progress)
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
